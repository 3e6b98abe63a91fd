"use strict";
// Shows one comparison at a time. Every text reaches the page through textContent, never as markup.
(() => {
  const source = document.getElementById("comparisons");
  if (!source) return;
  const { stages, comparisons } = JSON.parse(source.textContent);
  const viewer = document.getElementById("viewer");
  const form = viewer.querySelector("form");
  const fields = Object.fromEntries([...form.querySelectorAll("select")].map((select) => [select.name, select]));
  const status = viewer.querySelector("[role=status]");
  const article = viewer.querySelector("article");
  const buttons = [...viewer.querySelectorAll("[data-step]")];
  const NEAR = 240; // characters kept beside the evidence while the rest is folded
  const DASH = "–";
  let at = 0;
  let unfolded = false;
  let foldable = false; // whether the shown comparison has text that folding hides

  function element(tag, properties = {}, ...children) {
    const made = Object.assign(document.createElement(tag), properties);
    made.append(...children);
    return made;
  }

  const distinct = (values) => [...new Set(values)];
  const grouped = (number) => number.toLocaleString("en-US");

  function fill(name, options) {
    fields[name].append(...options.map(([value, label]) => element("option", { value, textContent: label })));
    fields[name].closest("label").hidden = options.length < 2 || (options.length === 2 && options[0][0] === "");
  }

  function chosen() {
    const { stage, length, size, verdict } = fields;
    return comparisons.filter((item) => {
      const judgment = item.judged[stage.value];
      return judgment && (!length.value || String(item.length) === length.value)
        && (!size.value || String(item.responses.length) === size.value)
        && (!verdict.value || judgment.verdict === verdict.value);
    });
  }

  // Splits one plain part into what stays visible beside its neighbors and what is folded away.
  function folded(text, first, last) {
    const head = first ? 0 : NEAR;
    const tail = last ? 0 : NEAR;
    if (text.length <= head + tail + 80) return [text];
    foldable = true;
    if (unfolded) return [text];
    const gap = element("span", { className: "gap", textContent: ` … ${grouped(text.length - head - tail)} characters … ` });
    return [text.slice(0, head), gap, text.slice(text.length - tail)];
  }

  function message({ role, parts }) {
    const text = element("p", { className: unfolded ? "text all" : "text" });
    if (unfolded) scrolling(text);
    const single = parts.length === 1;
    parts.forEach(([kind, content], index) => {
      if (kind === "plain") text.append(...folded(content, index === 0 && !single, index === parts.length - 1 && !single));
      else if (kind === "evidence") text.append(element("mark", { textContent: content }));
      else if (kind === "question") text.append(element("span", { className: "question", textContent: content }));
      else text.append(element("span", { className: "gap", textContent: ` … ${content} characters are not in this file … ` }));
    });
    return [element("p", { className: "role", textContent: role }), text];
  }

  function result(judgment) {
    const word = judgment.verdict === "no answer" ? `no answer: ${judgment.outcome}` : judgment.verdict;
    const sign = { right: "✓ ", wrong: "✗ " }[judgment.verdict] ?? "";
    return element("span", { className: judgment.verdict, textContent: sign + word });
  }

  const decimal = (score) => String(Number(score.toFixed(3))).replace("-", "−");

  function judged(judgment, index) {
    if (judgment.scores.length) return decimal(judgment.scores[index]);
    return judgment.ranking.length ? `place ${judgment.ranking.indexOf(index) + 1}` : DASH;
  }

  // What scrolls must be reached by the keyboard.
  const scrolling = (box) => Object.assign(box, { tabIndex: 0 });

  function written(text) {
    const box = element("p", { className: "text all", textContent: text });
    return text.length > 1500 ? scrolling(box) : box;
  }

  // What one trial came to: the order shown, the outcome, the verdict, and what was written.
  function trialItem(trial) {
    const facts = [`shown: ${trial.order.map((index) => index + 1).join(", ") || DASH}`, trial.outcome];
    if (trial.scores.length) facts.push(`scores: ${trial.scores.map(decimal).join(", ")}`);
    if (trial.ranking.length) facts.push(`best first: ${trial.ranking.map((index) => index + 1).join(", ")}`);
    if (trial.attempts > 1) facts.push(`${trial.attempts} attempts`);
    if (trial.contradicted) facts.push("its explanation argues for another verdict");
    const texts = [trial.detail, trial.explanation].filter(Boolean);
    return element("li", {}, element("p", { className: "role", textContent: facts.join(" · ") }),
      ...texts.map(written));
  }

  // A judge that reads scores only, asked once, has said all beside the responses.
  function trialList(judgment) {
    const told = judgment.trials.some((trial) => trial.explanation || trial.detail || trial.attempts > 1);
    if (judgment.trials.length < 2 && !told) return [];
    const name = judgment.trials.length > 1 ? `Asked ${judgment.trials.length} times` : "What the judge wrote";
    return [element("details", { open: judgment.trials.length <= 2 }, element("summary", { textContent: name }),
      element("ol", { className: "trials" }, ...judgment.trials.map(trialItem)))];
  }

  function response(item, judgment, index) {
    const rank = item.ranks ? item.ranks[index] : null;
    const places = [...new Set(judgment.trials.map((trial) => trial.order.indexOf(index) + 1))].filter(Boolean);
    const facts = [`Response ${index + 1}`, `gold rank ${rank ?? DASH}`, `score ${judged(judgment, index)}`, `shown at ${places.join(", ") || DASH}`];
    return element("li", { className: item.ranks && rank === Math.min(...item.ranks) ? "best" : "" },
      element("p", { className: "role", textContent: facts.join(" · ") }),
      written(item.responses[index]));
  }

  function cell(tag, content, scope) {
    const made = element(tag, {}, content);
    if (scope) made.scope = scope;
    return made;
  }

  function comparedStages(item) {
    const head = element("tr", {}, cell("th", "model", "col"),
      ...item.responses.map((_, index) => cell("th", `response ${index + 1}`, "col")), cell("th", "result", "col"));
    const rows = stages.flatMap(({ label }, number) => {
      const judgment = item.judged[number];
      return judgment ? [element("tr", {}, cell("th", label, "row"),
        ...item.responses.map((_, index) => cell("td", judged(judgment, index))), cell("td", result(judgment)))] : [];
    });
    const caption = element("caption", { textContent: "What each model made of it" });
    const box = element("div", { className: "scroll", tabIndex: 0 },
      element("table", {}, caption, element("thead", {}, head), element("tbody", {}, ...rows)));
    box.setAttribute("role", "region");
    box.setAttribute("aria-label", caption.textContent);
    return box;
  }

  function fact(name, value) {
    return element("div", {}, element("dt", { textContent: name }), element("dd", {}, value));
  }

  function card(item) {
    const judgment = item.judged[fields.stage.value];
    const facts = element("dl", { className: "facts" },
      fact("result", result(judgment)),
      fact("length", item.length === null ? DASH : `${grouped(item.length)} tokens`),
      fact("depth", item.depth === null ? DASH : item.depth.toFixed(2)),
      ...(item.task ? [fact("task", item.task)] : []),
      ...(judgment.cut ? [fact("cut to fit", `${grouped(judgment.cut[1])} tokens, ${judgment.cut[0]}`)] : []),
      ...(judgment.check ? [fact("verdict without the context", judgment.check)] : []));
    const fold = element("button", { type: "button", textContent: unfolded ? "Fold the context" : "Show all of the context" });
    fold.setAttribute("aria-expanded", String(unfolded));
    fold.addEventListener("click", () => {
      unfolded = !unfolded;
      show();
      article.querySelector("button").focus();
    });
    foldable = false;
    const messages = item.messages.flatMap(message);
    return [element("h3", { textContent: item.id }), facts, ...messages, ...(foldable ? [element("p", {}, fold)] : []),
      element("ol", { className: "responses" }, ...item.responses.map((_, index) => response(item, judgment, index))),
      ...trialList(judgment), comparedStages(item)];
  }

  function show() {
    const found = chosen();
    at = Math.min(Math.max(at, 0), Math.max(found.length - 1, 0));
    status.textContent = found.length ? `${at + 1} of ${found.length}` : "No comparison matches";
    buttons.forEach((button) => { button.disabled = !found[at + Number(button.dataset.step)]; });
    article.replaceChildren(...(found.length ? card(found[at]) : []));
  }

  function step(by) {
    at += by;
    show();
  }

  const verdicts = distinct(comparisons.flatMap((item) => Object.values(item.judged).map((judgment) => judgment.verdict))).sort();
  const sorted = (values) => distinct(values).sort((a, b) => a - b);
  fill("stage", stages.map(({ label }, number) => [number, label]));
  fill("length", [["", "all"], ...sorted(comparisons.map((item) => item.length).filter((length) => length !== null)).map((length) => [length, grouped(length)])]);
  fill("size", [["", "all"], ...sorted(comparisons.map((item) => item.responses.length)).map((size) => [size, size])]);
  fill("verdict", [["", "all"], ...verdicts.map((verdict) => [verdict, verdict])]);
  fields.stage.value = String(stages.length - 1);
  form.addEventListener("change", () => { at = 0; show(); });
  form.addEventListener("submit", (event) => event.preventDefault());
  buttons.forEach((button) => button.addEventListener("click", () => step(Number(button.dataset.step))));
  viewer.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const elsewhere = event.target.closest("select, .scroll, .text") || event.altKey || event.ctrlKey || event.metaKey;
    if (by && !elsewhere) { event.preventDefault(); step(by); }
  });
  viewer.hidden = false;
  show();
})();
