// The long lists: unpack, filter, search, order, draw the rows in view, and insert the chosen article,
// which Python wrote and escaped. Addresses: #s7ecd45f6, #sites?kind=...&q=...&at=s7ecd45f6, and by the
// place in the list, which changes when the page is made anew: #s014
(async () => {
  const { one, all, typing } = pageTools;
  const ROW = 62; // px, as in page.css
  const inOrder = new Intl.Collator("en", { numeric: true }).compare;
  const unpack = async (block) => {
    const binary = atob(block.textContent);
    const bytes = new Uint8Array(binary.length);
    for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i); // from() is ten times slower
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
    return new Response(stream).json();
  };
  // The text of an article without what is marked as data-unsearched: labels, and other messages.
  const searchable = (html) => {
    let [text, outer, depth] = ["", "", 0];
    for (const [part, slash, name, attributes] of html.matchAll(/<(\/?)(\w+)([^>]*)>|[^<]+/g)) {
      if (depth) depth += name === outer ? (slash ? -1 : 1) : 0;
      else if (!name) text += part;
      else if (attributes.includes(" data-unsearched")) [outer, depth] = [name, 1];
      else text += " ";
    }
    return text.replace(/&lt;/g, "<").replace(/&gt;/g, ">").replace(/&quot;/g, '"').replace(/&#x27;/g, "'").replace(/&amp;/g, "&");
  };

  const openList = async (root) => {
    const anchorName = root.dataset.list;
    const { fields, nouns, facets, lines, elsewhere, rows, articles } = await unpack(document.getElementById(anchorName + "-data"));
    const column = Object.fromEntries(fields.map((name, i) => [name, i]));
    const lasting = (row) => row[column.lasting] || row[column.name];
    const number = new Map([...rows.entries()].flatMap(([i, row]) => [[row[column.name], i], [lasting(row), i]]));
    const controls = all("[data-facet]", root);
    const [status, nav, list, place] = [".controls output", ".sites nav", ".sites nav ol", ".sites .shown"].map((s) => one(s, root));
    const search = one('[data-facet="q"]', root);
    const [nothing, missing] = ["[data-nothing]", "[data-missing]"].map((s) => one(s, root));
    let shown = rows.map((_, i) => i);
    let current = -1; // no row
    let uncontrolled = {}; // filters of an address by a facet with one value, which has no control

    const texts = [];
    const textOf = (i) => (texts[i] ??= (rows[i].flat().join(" ") + " " + searchable(articles[i] || "")).toLowerCase());
    const has = (i, name, value) => {
      const cell = rows[i][column[name]];
      return Array.isArray(cell) ? (cell.length ? cell.includes(value) : value === "-") : (cell || "-") === value;
    };

    const wanted = () => ({ ...uncontrolled, ...Object.fromEntries(controls.map((c) => [c.dataset.facet, c.value]).filter(([, value]) => value)) });
    const setFilters = (asked) => {
      controls.forEach((c) => set(c, asked.get(c.dataset.facet) || ""));
      const free = facets.filter((name) => asked.get(name) && !controls.some((c) => c.dataset.facet === name));
      uncontrolled = Object.fromEntries(free.map((name) => [name, asked.get(name)]));
    };
    const order = (key) => {
      const [at, from] = [column[key], column.name];
      if (key === "log") return (a, b) => inOrder(rows[a][from], rows[b][from]);
      if (typeof rows[0]?.[at] === "number") return (a, b) => rows[b][at] - rows[a][at];
      return key === "day" ? (a, b) => rows[b][at].localeCompare(rows[a][at]) : (a, b) => rows[a][at].localeCompare(rows[b][at]);
    };

    const link = (i, at) => {
      const item = document.createElement("li");
      item.setAttribute("aria-setsize", shown.length);
      item.setAttribute("aria-posinset", at + 1);
      const anchor = document.createElement("a");
      anchor.href = address(i);
      if (i === current) anchor.setAttribute("aria-current", "true");
      const [first, second, third] = lines.map((name) => rows[i][column[name]]);
      for (const [tag, text] of [["b", `${rows[i][column.name]} ${first}`], ["code", second], ["small", third]]) {
        const part = document.createElement(tag);
        part.textContent = text;
        anchor.append(part);
      }
      item.append(anchor);
      return item;
    };
    const draw = () => {
      const from = Math.max(0, Math.floor(nav.scrollTop / ROW) - 6);
      const to = Math.min(shown.length, from + Math.ceil(nav.clientHeight / ROW) + 12);
      const focused = list.contains(document.activeElement) ? document.activeElement.hash : null;
      list.style.paddingTop = `${from * ROW}px`;
      list.style.paddingBottom = `${(shown.length - to) * ROW}px`;
      list.replaceChildren(...shown.slice(from, to).map((i, k) => link(i, from + k)));
      if (focused) all("a", list).find((anchor) => anchor.hash === focused)?.focus({ preventScroll: true });
    };
    const scrollToCurrent = () => {
      const at = shown.indexOf(current);
      if (at < 0) return;
      const [top, bottom] = [at * ROW, (at + 1) * ROW];
      if (top < nav.scrollTop || bottom > nav.scrollTop + nav.clientHeight) nav.scrollTop = Math.max(0, top - nav.clientHeight / 3);
    };
    const select = (i) => {
      current = i;
      if (articles[i]) place.replaceChildren(...new DOMParser().parseFromString(articles[i], "text/html").body.childNodes);
      else place.textContent = elsewhere.replace("{}", lasting(rows[i]));
      scrollToCurrent();
      draw();
    };

    const address = (i) => {
      const filters = wanted();
      const name = i >= 0 ? lasting(rows[i]) : "";
      if (!Object.keys(filters).length) return "#" + (name || anchorName);
      return `#${anchorName}?` + new URLSearchParams(name ? { ...filters, at: name } : filters);
    };
    const choose = () => {
      const filters = wanted();
      const words = (filters.q || "").toLowerCase().split(/\s+/).filter(Boolean);
      const chosen = Object.entries(filters).filter(([name]) => facets.includes(name));
      shown = rows.map((_, i) => i).filter((i) => chosen.every(([name, value]) => has(i, name, value)) && words.every((word) => textOf(i).includes(word)));
      if (filters.sort === "log" || filters.sort in column) shown.sort(order(filters.sort));
      status.textContent = `${shown.length} of ${rows.length} ${nouns}`;
      nothing.toggleAttribute("hidden", shown.length > 0);
      missing.toggleAttribute("hidden", true);
      nav.scrollTop = 0;
    };
    const showNone = () => {
      current = -1;
      place.replaceChildren();
      draw();
    };
    const changed = () => {
      choose();
      if (!shown.includes(current)) shown.length ? select(shown[0]) : showNone();
      history.replaceState(null, "", address(current));
      draw();
    };
    const set = (control, value) => {
      control.value = value;
      if (control.value !== value && control.options) {
        control.add(new Option(value, value)); // a value beyond the listed ones
        control.value = value;
      }
    };
    // A name such as a999: of a row of this list, or of one that it had on an earlier page.
    const isName = (anchor) => /^[a-z](\d{3,}|[0-9a-f]{8})$/.test(anchor) && rows[0]?.[column.name][0] === anchor[0];
    // Whether the address is of this list.
    const fromHash = () => {
      const [anchor, query] = location.hash.slice(1).split("?");
      const asked = new URLSearchParams(query || "");
      const name = asked.get("at") || (anchor === anchorName ? "" : anchor);
      if (anchor !== anchorName && !isName(anchor)) return false;
      if (query || (number.has(anchor) && !shown.includes(number.get(anchor)))) setFilters(asked);
      choose();
      const found = name ? number.get(name) : shown.includes(current) ? current : shown[0];
      found === undefined ? showNone() : select(found);
      const isMissing = name && found === undefined;
      missing.toggleAttribute("hidden", !isMissing);
      const target = isMissing ? missing : name ? place : document.getElementById(anchorName);
      target.scrollIntoView({ block: "start" });
      return true;
    };

    controls.forEach((control) => control.addEventListener("input", changed));
    const clear = () => {
      setFilters(new URLSearchParams());
      changed();
      one("[data-clear]", root).focus({ preventScroll: true }); // that of an empty list is hidden
    };
    all("[data-clear]", root).forEach((button) => button.addEventListener("click", clear));
    nav.addEventListener("scroll", draw, { passive: true });
    addEventListener("resize", draw);
    search.addEventListener("keydown", (event) => {
      if (event.key === "Escape") search.blur();
      if (event.key === "Enter" && shown.length) location.hash = address(shown[0]);
    });
    choose();
    if (rows.length) select(0);
    const step = (by) => {
      const next = shown[shown.indexOf(current) + by];
      if (next !== undefined) location.hash = address(next);
    };
    return { root, search, step, fromHash };
  };

  const lists = await Promise.all(all("[data-list]").map(openList));
  let last = lists[0];
  const goToHash = () => (last = lists.find((list) => list.fromHash()) || last);
  // The keys are for the list in the middle of the screen, else for the one that was used last.
  const inView = () => {
    const middle = innerHeight / 2;
    const isThere = ({ top, bottom }) => top < middle && bottom > middle;
    return lists.find((list) => isThere(list.root.getBoundingClientRect())) || last;
  };
  addEventListener("hashchange", goToHash);
  addEventListener("keydown", (event) => {
    if (typing(event) || !lists.length || !["/", "j", "k"].includes(event.key)) return;
    if (event.key === "/") {
      inView().search.focus();
      event.preventDefault();
    } else inView().step(event.key === "j" ? 1 : -1);
  });
  goToHash();
  document.documentElement.dataset.ready = "yes";
})();
