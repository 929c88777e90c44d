"use strict";
// Without this script the page shows all sites, one below the other. The script writes no HTML, only text.
(() => {
  const root = document.documentElement;
  const sites = [...document.querySelectorAll("article.site")];
  const links = [...document.querySelectorAll(".sites nav a")];
  let current = -1;

  const select = (index) => {
    current = index;
    sites.forEach((site, i) => site.classList.toggle("on", i === index));
    links.forEach((link, i) => {
      if (i === index) {
        link.setAttribute("aria-current", "true");
        const list = link.closest("nav"); // scroll the list, never the page
        const below = link.offsetTop + link.offsetHeight - list.clientHeight;
        list.scrollTop = Math.max(below, Math.min(list.scrollTop, link.offsetTop));
      } else link.removeAttribute("aria-current");
    });
  };
  const fromHash = () => {
    const index = sites.findIndex((site) => "#" + site.id === location.hash);
    if (index >= 0) {
      select(index);
      sites[index].scrollIntoView({ block: "start" });
    } else if (current < 0 && sites.length) select(0);
  };
  if (sites.length) {
    root.classList.add("scripted");
    select(0);
    fromHash();
    addEventListener("hashchange", fromHash);
  }

  const steps = [...document.querySelectorAll("button[data-show]")];
  const show = (step) => {
    root.dataset.step = step;
    steps.forEach((button) => button.setAttribute("aria-pressed", String(button.dataset.show === step)));
  };
  steps.forEach((button) => button.addEventListener("click", () => show(button.dataset.show)));
  document.querySelectorAll(".script-only").forEach((part) => part.removeAttribute("hidden"));
  root.dataset.step = "last";

  const read = (token) => {
    const heat = token.closest(".heat");
    heat.querySelectorAll(".read").forEach((other) => other.classList.remove("read"));
    token.classList.add("read");
    token.scrollIntoView({ block: "nearest" });
    heat.querySelector("output").textContent = JSON.stringify(token.textContent) + "  " + token.title;
  };
  document.querySelectorAll(".heat .tokens").forEach((box) => {
    box.addEventListener("click", (event) => {
      if (event.target.classList.contains("t")) read(event.target);
    });
    box.addEventListener("keydown", (event) => {
      const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!move) return;
      const tokens = [...box.querySelectorAll(".t")];
      const at = tokens.findIndex((token) => token.classList.contains("read"));
      read(tokens[Math.max(0, Math.min(tokens.length - 1, at + move))]);
      event.preventDefault();
    });
  });

  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !sites.length) return;
    const next = { j: current + 1, k: current - 1 }[event.key];
    if (next !== undefined && sites[next]) location.hash = sites[next].id;
    if (event.key === "f" || event.key === "l") if (steps.length) show(event.key === "f" ? "first" : "last");
  });
})();
