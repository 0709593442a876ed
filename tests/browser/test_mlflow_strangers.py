"""What a model wrote and what other pages do, in a real browser that has `rollbook ui` open."""

from __future__ import annotations

import contextlib
import http.server
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from rollbook.project.run.run import Run
from tests.browser.mlflow_pages import calm_page
from tests.mlflow_server import serving
from tests.unit.views.mlflow.project import Project


@dataclass
class Elsewhere:
    """A server of somebody else's on this machine, and what it was asked for.

    Attributes:
        page: it serves, as HTML.
        asked: paths, with cookies and referring pages.
    """

    port: int = 0
    page: str = ""
    asked: list[tuple[str, str, str]] = field(default_factory=list)

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}/{path}"


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[Elsewhere]:
    made = Elsewhere()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            headers = self.headers
            made.asked.append((self.path, headers.get("Cookie", ""), headers.get("Referer", "")))
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(made.page.encode())

        def log_message(self, *_: object) -> None:
            """Prints nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        made.port = server.server_address[1]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield made
        server.shutdown()


@pytest.fixture(scope="module")
def link(elsewhere: Elsewhere, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A project whose model answered with pictures, and a note that shows them."""
    from rollbook.views.mlflow.descriptions import NOTE
    from rollbook.views.mlflow.store import opened
    from rollbook.views.mlflow.sync import bring_up_to_date

    folder = tmp_path_factory.mktemp("pictures")
    pictures = (
        f"![of an answer]({elsewhere.url('markdown.png')})\n\n"
        f'<img src="{elsewhere.url("html.png")}"><video src="{elsewhere.url("film.mp4")}"></video>'
        f'<link rel="stylesheet" href="{elsewhere.url("style.css")}">'
        f'<script src="{elsewhere.url("script.js")}"></script>\n\n[follow]({elsewhere.url("followed")})'
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name in [name for name in os.environ if name.startswith(("MLFLOW_", "DVC_"))]:
            patch.delenv(name)
        Path(".dvc").mkdir()
        Project(1, [[f"seven {pictures}", f"seven {pictures}"], ["5", "5"], ["1", "7"]]).finish(
            "i0001"
        )
        bring_up_to_date(Run())
        with opened("rollbook") as store:
            store.client.set_experiment_tag(store.experiment_id, NOTE, pictures)
            for run in store.client.search_runs([store.experiment_id]):
                store.client.set_tag(run.info.run_id, NOTE, pictures)
        with serving(folder) as printed:
            yield printed


@pytest.fixture
def page(browser: Browser, link: str) -> Iterator[Page]:
    """Of a browser that followed the link."""
    made = calm_page(browser)
    made.goto(link)
    expect(made.get_by_text("grpo, seed 0").first).to_be_visible(timeout=60_000)
    with contextlib.closing(made.context):
        yield made


def test_pictures_that_a_model_wrote_are_not_fetched(page: Page, elsewhere: Elsewhere) -> None:
    """In a trace, in the notes of a run and of the experiment."""
    elsewhere.asked.clear()
    blocked: list[str] = []
    page.on("console", lambda message: blocked.append(message.text))
    page.get_by_role("link", name="grpo, seed 0").first.click()
    expect(page.get_by_role("link", name="follow").first).to_be_visible(timeout=30_000)
    page.get_by_role("link", name="i0001").first.click()
    page.get_by_role("tab", name="Traces").click()
    page.get_by_text("1+2=").first.click(timeout=30_000)
    opened = page.get_by_role("dialog")
    expect(opened.get_by_text("Outputs").first).to_be_visible(timeout=30_000)
    expect(opened.get_by_text("seven").first).to_be_visible()
    expect(opened.locator("img, video").first).to_be_attached()
    page.wait_for_timeout(1_500)
    assert elsewhere.asked == []
    assert any("Content Security Policy" in text for text in blocked), "no picture was tried"
    assert all(str(elsewhere.port) not in text or "Policy" in text for text in blocked)


def test_what_is_followed_elsewhere_learns_no_address(page: Page, elsewhere: Elsewhere) -> None:
    elsewhere.asked.clear()
    page.goto(page.url.partition("#")[0])
    page.evaluate(
        "url => { const a = document.createElement('a'); a.href = url; document.body.append(a); a.click(); }",
        elsewhere.url("followed"),
    )
    page.wait_for_url("**/followed")
    assert [(path, referer) for path, _, referer in elsewhere.asked if path == "/followed"] == [
        ("/followed", "")
    ]


def test_a_page_on_another_port_changes_and_reads_nothing(
    browser: Browser, page: Page, link: str, elsewhere: Elsewhere
) -> None:
    """Cookies do not know ports: the browser sends the owner's with what such a page asks."""
    base = link.partition("?")[0]
    elsewhere.page = f"""<title>tried</title><img id="i" src="{base}get-artifact?run_id=x&path=y">
    <iframe src="{base}"></iframe><form id="f" method="post" enctype="text/plain" target="t"
    action="{base}api/2.0/mlflow/experiments/create"><input name='{{"name": "forged", "a": "' value='"}}'></form>
    <iframe name="t"></iframe><script>
    window.answers = [];
    for (const [path, options] of [
        ["api/2.0/mlflow/experiments/create", {{method: "POST", mode: "no-cors", body: '{{"name": "forged"}}'}}],
        ["ajax-api/2.0/mlflow/experiments/search?max_results=5", {{credentials: "include"}}],
    ]) fetch("{base}" + path, {{credentials: "include", ...options}})
        .then(answer => answer.text()).then(text => answers.push(text), () => answers.push("refused"));
    document.getElementById("f").submit();
    </script>"""
    other = page.context.new_page()
    other.goto(elsewhere.url("evil"))
    other.wait_for_function("answers.length == 2")
    assert set(other.evaluate("answers")) <= {"", "refused"}
    names = page.evaluate(
        "fetch('/ajax-api/2.0/mlflow/experiments/search?max_results=50').then(answer => answer.json())"
    )
    found = {each["name"] for each in names["experiments"]}
    assert "rollbook" in found and "forged" not in found
    shown = [frame.url for frame in other.frames if frame.url.startswith(base)]
    assert all("MLflow" not in frame.title() for frame in other.frames if frame.url in shown)


def test_a_browser_without_the_link_sees_nothing(browser: Browser, link: str) -> None:
    with contextlib.closing(calm_page(browser).context) as context:
        made = context.new_page()
        answer = made.goto(link.partition("?")[0])
        assert answer is not None and answer.status == 401
        assert "rollbook ui" in made.inner_text("body")
