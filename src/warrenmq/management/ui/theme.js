// Sets the theme before anything is drawn: that of the system, or the one chosen here. Not a module, so that it blocks.
(function () {
  const KEY = "warren-theme";
  const system = matchMedia("(prefers-color-scheme: dark)");

  function chosen() {
    try {
      return localStorage.getItem(KEY);
    } catch {
      return null; // no storage: use the theme of the system
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
