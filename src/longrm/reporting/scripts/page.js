// The browser of comparisons. Its state, the form and the open comparison, is in the page's fragment.
const MORE = 50; // rows added to the list at once
const viewer = document.getElementById("viewer"); // null on a page without evaluations
const form = viewer?.querySelector("form");
const status = viewer?.querySelector("[role=status]");
const list = viewer?.querySelector(".list");
const more = viewer?.querySelector(".more");
const article = viewer?.querySelector("article");
const steps = [...(viewer?.querySelectorAll("[data-step]") ?? [])];
let data; // models and items
let found = [];
let rows = MORE;
let key = null;

const values = () => Object.fromEntries([...new FormData(form)].filter(([, value]) => value));
const fragmentOf = (chosen, item) => `#items?${new URLSearchParams(item ? { ...chosen, item: item.key } : chosen)}`;

function fill(name, options) {
  const select = form.elements.namedItem(name); // one is called "length"
  select.append(...options.map(([value, label]) => element("option", { value }, String(label))));
  select.closest("label").hidden = options.length < 2;
}

function fillForm({ models, items }) {
  const distinct = (list) => [...new Set(list)];
  const numbers = (list) => distinct(list.filter((value) => value !== null)).sort((a, b) => a - b);
  const shorts = items.flatMap((item) => Object.values(item.judged));
  const verdicts = distinct(shorts.map(([verdict]) => verdict)).sort();
  const outcomes = distinct(shorts.map(([, outcome]) => outcome)).filter((outcome) => outcome !== "answered").sort();
  const named = (list) => list.map((value) => [value, value]);
  fill("model", models.map(({ label }) => [label, label]));
  fill("outcome", named(distinct(["not right", ...verdicts, ...outcomes])));
  fill("length", numbers(items.map((item) => item.length)).map((length) => [length, grouped(length)]));
  fill("depth", named(distinct(items.map((item) => item.place)).filter(Boolean).sort()));
  fill("task", named(distinct(items.map((item) => item.task)).filter(Boolean).sort()));
  fill("responses", named(numbers(items.map((item) => item.size))));
  form.elements.namedItem("explained").closest("label").hidden = items.every((item) => !item.explained.length);
  form.elements.namedItem("models").closest("label").hidden = models.length < 2;
}

function showList() {
  const chosen = values();
  found = chosenItems(data, chosen);
  const models = data.models;
  const row = found.findIndex((item) => item.key === key);
  list.replaceChildren(listTable(found.slice(0, Math.max(rows, row + 1)), models, (item) => fragmentOf(chosen, item), key));
  more.hidden = found.length <= rows;
  const count = found.length ? `${grouped(found.length)} of ${grouped(data.items.length)} comparisons` : "No comparison matches";
  status.textContent = row < 0 ? count : `${count}; number ${grouped(row + 1)} is open`;
  steps.forEach((button) => { button.disabled = !found[row + Number(button.dataset.step)]; });
}

async function showItem() {
  const wanted = key;
  const item = data.items.find((one) => one.key === wanted);
  const missing = "The comparison of this link is not in this report.";
  const view = item ? await itemView(item, data) : wanted === null ? [] : [element("p", { className: "notice" }, missing)];
  if (wanted !== key) return; // another one was opened in the meantime
  article.hidden = wanted === null;
  article.replaceChildren(...view);
  viewer.dataset.shown = wanted ?? "";
}

function changed() {
  rows = MORE;
  history.replaceState(null, "", fragmentOf(values(), key === null ? null : { key }));
  showList();
}

async function open(item) {
  key = item.key;
  history.replaceState(null, "", fragmentOf(values(), item));
  showList();
  await showItem();
}

// Unknown values are ignored.
function readFragment() {
  if (!location.hash.startsWith("#items?")) return false;
  const given = new URLSearchParams(location.hash.slice("#items?".length));
  form.reset();
  for (const field of form.querySelectorAll("input, select")) {
    const value = given.get(field.name) ?? "";
    if (field.tagName === "INPUT" || [...field.options].some((option) => option.value === value)) field.value = value;
  }
  key = given.get("item");
  rows = MORE;
  return true;
}

async function follow() {
  if (!readFragment()) return;
  showList();
  await showItem();
  const target = key === null ? document.getElementById("items") : article;
  target.scrollIntoView();
  if (key !== null) article.focus({ preventScroll: true });
}

function step(by) {
  const next = found[found.findIndex((item) => item.key === key) + by];
  if (next) open(next);
}

async function start() {
  if (typeof DecompressionStream === "undefined") {
    viewer.before(element("p", { className: "notice" }, "The browser of comparisons needs a web browser of 2023 or later."));
    return;
  }
  data = JSON.parse(await chunk(Number(viewer.dataset.index)));
  inflated.clear();
  for (const item of data.items) item.sought = [item.key, item.task, item.subtype, item.words].join("\n").toLowerCase();
  fillForm(data);
  form.addEventListener("input", changed);
  form.addEventListener("reset", () => setTimeout(changed)); // after the fields are empty
  form.addEventListener("submit", (event) => event.preventDefault());
  more.addEventListener("click", () => { rows += MORE; showList(); });
  steps.forEach((button) => button.addEventListener("click", () => step(Number(button.dataset.step))));
  article.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const elsewhere = event.target.closest(".scroll, .text") || event.altKey || event.ctrlKey || event.metaKey;
    if (by && !elsewhere) { event.preventDefault(); step(by); }
  });
  window.addEventListener("hashchange", follow);
  viewer.hidden = false;
  if (readFragment()) await follow();
  else showList();
  viewer.dataset.ready = "true";
}
if (viewer) start();
