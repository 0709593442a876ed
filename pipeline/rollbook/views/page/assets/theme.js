// Light, dark, or as the reader's system says. Runs before anything is drawn.
"use strict";
(() => {
  const KEY = "rollbook-theme";
  const root = document.documentElement;
  const kept = () => {
    try { return localStorage.getItem(KEY) || "system"; } catch { return "system"; } // files may have no storage
  };
  const apply = (theme) => {
    if (theme === "light" || theme === "dark") root.dataset.theme = theme;
    else delete root.dataset.theme;
  };
  apply(kept());
  document.addEventListener("DOMContentLoaded", () => {
    const choice = document.getElementById("theme");
    choice.value = root.dataset.theme || "system";
    choice.addEventListener("change", () => {
      apply(choice.value);
      try { localStorage.setItem(KEY, choice.value); } catch { /* then it holds for this look */ }
      document.dispatchEvent(new Event("themechange"));
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () =>
      document.dispatchEvent(new Event("themechange")));
  });
})();
