"use strict";
// Steps of the colours, tokens one by one, and the values of curves. The script writes no text as HTML.
const pageTools = (() => {
  const root = document.documentElement;
  const one = (selector, within = document) => within.querySelector(selector);
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  all(".script-only").forEach((part) => part.removeAttribute("hidden"));
  all(".no-script").forEach((part) => part.setAttribute("hidden", ""));

  const steps = all("button[data-show]");
  const show = (step) => {
    root.dataset.step = step;
    steps.forEach((button) => button.setAttribute("aria-pressed", String(button.dataset.show === step)));
  };
  steps.forEach((button) => button.addEventListener("click", () => show(button.dataset.show)));

  const read = (token) => {
    const heat = token.closest(".heat");
    all(".read", heat).forEach((other) => other.classList.remove("read"));
    token.classList.add("read");
    token.scrollIntoView({ block: "nearest" });
    one("output", heat).textContent = JSON.stringify(token.textContent) + "  " + token.title;
  };
  document.addEventListener("click", (event) => {
    if (event.target.closest(".heat .t")) read(event.target);
  });
  document.addEventListener("keydown", (event) => {
    const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const box = event.target.closest(".heat .tokens");
    if (!move || !box) return;
    const tokens = all(".t", box);
    const at = tokens.findIndex((token) => token.classList.contains("read"));
    read(tokens[Math.max(0, Math.min(tokens.length - 1, at + move))]);
    event.preventDefault();
  });

  // A curve's values: at the pointer, or with the arrow keys.
  const curves = (figure) => {
    const svg = one("svg", figure);
    const cursor = one(".cursor", svg);
    const lines = all("[data-values]", svg).map((line) => ({
      name: line.dataset.name,
      points: line.dataset.values.split(" ").map((point) => point.split(":")), // x, step, value
    }));
    const xs = [...new Set(lines.flatMap((line) => line.points.map((point) => Number(point[0]))))].sort((a, b) => a - b);
    let at = -1;
    const readAt = (index) => {
      at = Math.max(0, Math.min(xs.length - 1, index));
      cursor.setAttribute("x1", xs[at]);
      cursor.setAttribute("x2", xs[at]);
      cursor.classList.add("on");
      const here = lines.flatMap((line) => line.points.filter((point) => Number(point[0]) === xs[at]).map((point) => [line.name, ...point]));
      const label = here.length ? figure.dataset.unit + " " + here[0][2] : "";
      one("output", figure).textContent = label + "  " + here.map((point) => (lines.length > 1 ? point[0] + " " : "") + point[3]).join(", ");
    };
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      const x = ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width;
      readAt(xs.reduce((best, value, i) => (Math.abs(value - x) < Math.abs(xs[best] - x) ? i : best), 0));
    });
    svg.addEventListener("keydown", (event) => {
      const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!move) return;
      readAt(at + move);
      event.preventDefault();
    });
  };
  all("figure.curves").forEach(curves);

  all("button[data-copy]").forEach((button) => {
    button.addEventListener("click", () => {
      const text = document.getElementById(button.dataset.copy);
      getSelection().selectAllChildren(text);
      navigator.clipboard?.writeText(text.textContent).then(() => (button.textContent = "copied"), () => {});
    });
  });

  const typing = (event) => event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea");
  addEventListener("keydown", (event) => {
    if (!typing(event) && steps.length && (event.key === "f" || event.key === "l")) show(event.key === "f" ? "first" : "last");
  });
  return { one, all, typing };
})();
