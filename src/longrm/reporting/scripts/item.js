// One comparison: its prompt, its responses, and every model's judgment, side by side.
function written(text) {
  const box = element("div", { className: "text all" }, text);
  return text.length > 1500 ? scrolling(box) : box;
}

function fact(name, value) {
  return element("div", {}, element("dt", {}, name), element("dd", {}, value));
}

const numbered = (indices) => indices.map((index) => index + 1).join(", ");

// The verdict of a judgment or of one of its trials; empty where there is none.
function parsedVerdict({ scores, ranking }) {
  if (ranking.length) return `best first: ${numbered(ranking)}`;
  if (!scores.length) return "";
  const best = scores.flatMap((score, index) => (score === Math.max(...scores) ? [index] : []));
  const word = best.length > 1 ? `tie of ${numbered(best)}` : `response ${best[0] + 1}`;
  return `${word} (scores ${scores.map(decimal).join(", ")})`;
}

function trialItem(trial) {
  const facts = [`shown: ${numbered(trial.order) || DASH}`, trial.outcome];
  const verdict = parsedVerdict(trial);
  if (verdict) facts.push(`verdict: ${verdict}`);
  if (trial.attempts > 1) facts.push(`${trial.attempts} attempts`);
  if (trial.contradicted) facts.push("explanation contradicts verdict");
  return element("li", {}, element("p", { className: "role" }, facts.join(" · ")),
    ...[trial.detail, trial.explanation].filter(Boolean).map(written));
}

// The verdict says everything of a single trial without text.
function trialList({ trials }) {
  const informative = trials.some((trial) => trial.explanation || trial.detail || trial.attempts > 1);
  if (trials.length < 2 && !informative) return [];
  const orders = new Set(trials.map((trial) => trial.order.join()));
  const name = trials.length > 1 ? `Asked ${trials.length} times, in ${orders.size} order${orders.size > 1 ? "s" : ""}` : "Its text";
  return [element("details", { open: trials.length <= 2 }, element("summary", {}, name),
    element("ol", { className: "trials" }, ...trials.map(trialItem)))];
}

// One model's column. `short` is missing where the model did not judge this comparison, `judgment` where it was not kept.
function modelColumn(model, short, judgment, explained) {
  const facts = short ? [fact("result", verdictWord(short))] : [];
  if (short && short[2] !== null) facts.push(fact("margin", decimal(short[2])));
  if (judgment) {
    const verdict = parsedVerdict(judgment);
    if (verdict) facts.push(fact("verdict", verdict));
    if (judgment.tokens !== null) facts.push(fact("tokens read", grouped(judgment.tokens)));
    if (judgment.cut) facts.push(fact("cut to fit", `${grouped(judgment.cut[1])} tokens, ${judgment.cut[0]}`));
    if (judgment.committed) facts.push(fact(`own answer first: ${judgment.committed[0]}`, judgment.committed[1] || DASH));
    if (judgment.check) facts.push(fact("verdict without the context", judgment.check));
  }
  return element("section", { className: "model" }, element("h4", {}, swatch(model.style), model.label),
    element("dl", { className: "facts" }, ...facts), ...(judgment ? trialList(judgment) : []), ...explained);
}

function responseItem(detail, index) {
  const rank = detail.ranks ? detail.ranks[index] : null;
  const best = detail.ranks && rank === Math.min(...detail.ranks);
  const facts = `Response ${index + 1} · gold rank ${rank ?? DASH}${best ? " (best)" : ""}`;
  return element("li", { className: best ? "best" : "" }, element("p", { className: "role" }, facts), written(detail.responses[index]));
}

function itemFacts(item) {
  return element("dl", { className: "facts" },
    fact("length", item.length === null ? DASH : `${grouped(item.length)} tokens`),
    fact("depth", item.depth === null ? DASH : item.depth.toFixed(2)),
    ...(item.task ? [fact("task", item.task)] : []), ...(item.subtype ? [fact("subtype", item.subtype)] : []));
}

// The whole comparison as nodes.
async function itemView(item, { models }) {
  const heading = [element("h3", {}, item.key), itemFacts(item)];
  const detail = item.chunk === null ? null : JSON.parse(await chunk(item.chunk));
  const column = (number, explained) => modelColumn(models[number], item.judged[number], detail?.judged[number], explained);
  const seen = models.flatMap((_, number) => (item.judged[number] || item.explained.includes(number) ? [number] : []));
  const side = (explained) => element("div", { className: "models" }, ...seen.map((number) => column(number, explained(number))));
  if (!detail) {
    const note = item.kept
      ? "Its texts do not fit into this page; they are in examples.jsonl of the run."
      : "Its texts were not kept: of comparisons judged right, a run keeps the first contexts of each length. The same "
        + "command with a larger judging.examples adds them without judging again.";
    return [...heading, element("p", { className: "note" }, note), side(() => [])];
  }
  const tools = await Promise.all(detail.tools.map(loadedMessage));
  const messages = await Promise.all(detail.messages.map(loadedMessage));
  shade(messages, detail.maps.find((map) => !map.reason));
  const prompt = element("div", {}, ...promptView([...tools, ...messages]));
  const { panel, jump } = mapPanel(detail.maps, models, messages, prompt);
  const judged = side((number) => detail.maps.filter((map) => map.model === number).flatMap((map) => mapView(map, jump)));
  return [...heading, ...panel, ...evidenceButton(prompt), prompt,
    element("ol", { className: "responses" }, ...detail.responses.map((_, index) => responseItem(detail, index))),
    element("h4", { className: "made" }, seen.length > 1 ? "Judgments" : "Judgment"), judged];
}
