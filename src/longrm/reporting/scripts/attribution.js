// An attribution: shaded sentences in the prompt, a strip by depth, the strongest sentences, and the trust checks.
const SVG = "http://www.w3.org/2000/svg";

function drawn(tag, attributes, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

const placeOf = ({ message, start }) => `${message}-${start}`;
const explains = ({ target: [response, against] }) => (against === null
  ? `the score of response ${response + 1}`
  : `the lead of response ${response + 1} over response ${against + 1}`);

// A piece of a sentence with weight; the number of a strong one is where the sentence ends.
function shadedPiece(text, one, evidence, ends) {
  const names = ["weighs", one.share > 0 ? "raises" : "lowers", evidence ? "evidence" : ""];
  // The number goes before a trailing line break: after it, it would be in the next paragraph.
  const shown = ends ? text.trimEnd() : text;
  const made = element("mark", { className: names.filter(Boolean).join(" "), title: one.weight, tabIndex: -1 }, shown);
  made.style.setProperty("--share", `${Math.abs(one.share)}%`);
  made.dataset.place = placeOf(one);
  if (one.numbered && ends) made.append(element("sup", {}, String(one.rank)));
  made.append(visible(text.slice(shown.length)));
  return made;
}

function shade(messages, map) {
  messages.forEach((message, number) => {
    message.shaded = map ? map.shaded.filter((one) => one.message === number) : [];
  });
}

function strip(map, model, jump) {
  const bars = map.shaded.map((one) => {
    const { left, width, top, height, share } = one;
    const bar = drawn("rect", { class: share > 0 ? "raises" : "lowers", x: left, width, y: top, height });
    bar.addEventListener("click", () => jump(map, one));
    return bar;
  });
  const feet = map.evidence.map(({ left, width }) => drawn("path",
    { d: `M${left} 57h${width}`, stroke: "var(--ink)", "stroke-width": 4, "vector-effect": "non-scaling-stroke" }));
  const line = drawn("path", { d: "M0 27H1000", stroke: "var(--muted)", "vector-effect": "non-scaling-stroke" });
  const label = `Weights of sentences from the start of the context to its end, for ${visible(map.name)}; those that raise `
    + `${explains(map)} are above the line`;
  return element("figure", { className: "strip" },
    element("figcaption", {}, swatch(model.style), map.name, element("small", {}, ` ${explains(map)}`)),
    drawn("svg", { viewBox: "0 0 1000 60", preserveAspectRatio: "none", role: "img", "aria-label": label }, line, ...bars, ...feet));
}

// Selects which attribution is shaded; bars of the strip and rows of the list lead to their sentence.
function mapPanel(maps, models, messages, prompt) {
  const shown = maps.filter((map) => !map.reason);
  if (!shown.length) return { panel: [], jump: () => {} };
  const select = element("select", {}, ...shown.map((map, number) => element("option", { value: String(number) }, map.name)),
    element("option", { value: "" }, "nothing"));
  const choose = (map) => {
    shade(messages, map);
    messages.forEach((message) => message.draw());
  };
  select.addEventListener("input", () => choose(shown[select.value]));
  const jump = (map, one) => {
    if (select.value !== String(shown.indexOf(map))) {
      select.value = String(shown.indexOf(map));
      choose(map);
    }
    const mark = prompt.querySelector(`[data-place="${placeOf(one)}"]`);
    mark.focus({ preventScroll: true });
    mark.scrollIntoView({ block: "center" });
  };
  const legend = element("ul", { className: "legend" },
    element("li", {}, element("span", { className: "weighs raises" }, "raises the lead")),
    element("li", {}, element("span", { className: "weighs lowers" }, "lowers it")),
    element("li", {}, "Stronger shades are larger weights; the numbers are those of the list."),
    element("li", {}, element("span", { className: "weighs raises evidence" }, "framed"), ": evidence"));
  const ends = element("p", { className: "ends" }, element("span", {}, "Start"), element("span", {}, "End"));
  const note = "Above the line: raises the lead; below: lowers it. Marks at the foot: evidence.";
  const panel = element("div", { className: "map" },
    element("label", {}, "Shaded by the attribution of ", select), legend,
    element("h4", {}, "By depth"), ...shown.map((map) => strip(map, models[map.model], jump)), ends,
    element("p", { className: "note" }, note));
  return { panel: [panel], jump };
}

function tableOf(name, kind, heads, rows) {
  const head = element("tr", {}, ...heads.map((one) => element("th", { scope: "col" }, one)));
  const box = element("div", { className: `scroll ${kind}` },
    element("table", {}, element("thead", {}, head), element("tbody", {}, ...rows)));
  box.setAttribute("role", "region");
  box.setAttribute("aria-label", name);
  return scrolling(box);
}

function rankedList(map, jump) {
  const rows = map.ranked.map((one, number) => {
    const button = element("button", { type: "button" }, String(number + 1));
    button.setAttribute("aria-label", `Show number ${number + 1} of the strongest in the context`);
    button.addEventListener("click", () => jump(map, map.shaded.find(({ rank }) => rank === number + 1)));
    const evidence = one.evidence ? [element("small", { className: "long" }, "evidence")] : [];
    return element("tr", {}, element("th", { scope: "row" }, button),
      element("td", {}, one.weight, element("small", {}, one.raises ? "raises" : "lowers")),
      element("td", {}, one.text, ...evidence), element("td", {}, one.depth));
  });
  return tableOf("The strongest sentences", "ranked", ["", "Weight", "Sentence", "Depth"], rows);
}

// One attribution in the column of its model: the strongest sentences, or the reason why there are none.
function mapView(map, jump) {
  const heading = element("h4", {}, map.reason ? "Why" : "The strongest sentences", element("small", {}, ` ${explains(map)}`));
  const found = map.reason
    ? element("div", { className: "notice" }, element("p", {}, element("strong", {}, "No map is shown:"), ` ${map.reason}.`))
    : rankedList(map, jump);
  if (!map.trust.length) return [heading, found];
  const rows = map.trust.map(([name, values]) => element("tr", {}, element("th", { scope: "row" }, name),
    ...values.map((value) => element("td", {}, value))));
  return [heading, found, element("h4", {}, "Trust checks"),
    element("dl", { className: "facts" }, ...map.facts.map(([name, value]) => fact(name, value))),
    tableOf("Trust checks", "trust", ["Lead", ...map.tops.map((k) => `top ${k}`)], rows),
    ...(map.redundant ? [element("p", {}, map.redundant)] : [])];
}
