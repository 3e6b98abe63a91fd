// The list of comparisons: filters, orders, and the table.
const verdictsOf = (item, model) => Object.entries(item.judged)
  .filter(([number]) => model === null || Number(number) === model).map(([, short]) => short);
const marginsOf = (item, model) => verdictsOf(item, model).map((short) => short[2]).filter((margin) => margin !== null);
const disagree = (item) => new Set(Object.values(item.judged).map(([verdict]) => verdict)).size > 1;
const lowest = (numbers) => (numbers.length ? Math.min(...numbers) : Infinity);

// Arguments: a comparison, the chosen value, and the number of the chosen model (null for any).
const FILTERS = {
  q: (item, sought) => sought.toLowerCase().split(/\s+/).every((word) => item.sought.includes(word)),
  model: (item, _, model) => model === null || model in item.judged,
  outcome: (item, value, model) => verdictsOf(item, model).some(([verdict, outcome]) =>
    (value === "not right" ? verdict !== "right" && verdict !== "no gold" : verdict === value || outcome === value)),
  length: (item, value) => String(item.length) === value,
  depth: (item, value) => item.place === value,
  task: (item, value) => item.task === value,
  responses: (item, value) => String(item.size) === value,
  models: (item, value) => disagree(item) === (value === "disagree"),
  explained: (item, _, model) => item.explained.some((number) => model === null || number === model),
  margin: (item, value, model) => marginsOf(item, model).some((margin) => Math.abs(margin) <= Number(value)),
};

const known = (value) => (value === null ? Infinity : value);
const ORDERS = {
  shortest: (a, b) => known(a.length) - known(b.length),
  longest: (a, b) => known(b.length) - known(a.length),
  depth: (a, b) => known(a.depth) - known(b.depth),
  task: (a, b) => a.task.localeCompare(b.task, "en"),
  lowest: (a, b, margins) => lowest(margins(a)) - lowest(margins(b)),
  highest: (a, b, margins) => lowest(margins(b).map((margin) => -margin)) - lowest(margins(a).map((margin) => -margin)),
  nearest: (a, b, margins) => lowest(margins(a).map(Math.abs)) - lowest(margins(b).map(Math.abs)),
};

// The comparisons that a form's values choose, in their order; ties stay in the order of judging.
function chosenItems({ models, items }, values) {
  const found = models.findIndex(({ label }) => label === values.model);
  const model = found < 0 ? null : found;
  const active = Object.entries(values).filter(([name, value]) => value && name in FILTERS);
  const chosen = items.filter((item) => active.every(([name, value]) => FILTERS[name](item, value, model)));
  const order = ORDERS[values.sort];
  // The difference of two unknown values is NaN: treat them as equal.
  return order ? chosen.sort((a, b) => order(a, b, (item) => marginsOf(item, model)) || 0) : chosen;
}

function listRow(item, models, fragment, open) {
  const link = element("a", { href: fragment(item) }, item.key);
  if (open) link.setAttribute("aria-current", "true");
  const question = element("small", {}, item.words.split("\n")[0].slice(0, 120));
  const name = element("th", { scope: "row" }, link, item.words ? question : "");
  const judged = models.map((_, number) => {
    const short = item.judged[number];
    if (!short) return element("td", {}, DASH);
    const margin = short[2] === null ? "" : element("small", {}, decimal(short[2]));
    return element("td", {}, verdictWord(short), margin);
  });
  return element("tr", { className: open ? "open" : "" }, name, element("td", {}, item.length === null ? DASH : grouped(item.length)),
    element("td", {}, item.depth === null ? DASH : item.depth.toFixed(2)), element("td", {}, item.task || DASH), ...judged);
}

function listTable(items, models, fragment, key) {
  const heads = ["comparison", "length", "depth", "task", ...models.map(({ label }) => label)];
  const head = element("tr", {}, ...heads.map((name) => element("th", { scope: "col" }, name)));
  const caption = element("caption", {}, element("span", {}, "Results, and margins where there are scores"));
  return element("table", {}, caption, element("thead", {}, head),
    element("tbody", {}, ...items.map((item) => listRow(item, models, fragment, item.key === key))));
}
