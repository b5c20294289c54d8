// Light or dark, before anything is drawn: as the system has it, or as it was chosen here. A plain script, so that it blocks.
(function () {
  const KEY = "warren-theme";
  const system = matchMedia("(prefers-color-scheme: dark)");

  function chosen() {
    try {
      return localStorage.getItem(KEY);
    } catch {
      return null; // storage is switched off: the system decides
    }
  }

  function apply() {
    const theme = chosen() ?? (system.matches ? "dark" : "light");
    document.documentElement.dataset.theme = theme;
    document.dispatchEvent(new CustomEvent("themechange", { detail: theme }));
  }

  window.warrenTheme = {
    current: () => document.documentElement.dataset.theme,
    switch() {
      const next = this.current() === "dark" ? "light" : "dark";
      try {
        localStorage.setItem(KEY, next);
      } catch {
        document.documentElement.dataset.theme = next;
        return;
      }
      apply();
    },
  };
  system.addEventListener("change", apply);
  apply();
})();
