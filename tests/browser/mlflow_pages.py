"""MLflow's pages without what they open beside themselves."""

from __future__ import annotations

from playwright.sync_api import Browser, Page

CALM = (
    "localStorage.setItem('mlflow.assistant.fab.autoOpenedOnFirstLoad_v1', 'true');"
    "localStorage.setItem('mlflow.workflowType_v1', '\"machine_learning\"');"
)
"""As after the first visit: the assistant closed, `Model training` chosen."""


def calm_page(browser: Browser) -> Page:
    """A page of a context of its own, in which MLflow's pages open nothing beside themselves."""
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    context.add_init_script(CALM)
    return context.new_page()
