// The page of `bytelm serve`: chooses the run and the view.

import { ask, takeToken } from "./api.js";
import { byId, dress, fillSelect } from "./dom.js";
import { FillView } from "./fill.js";
import { ReadView } from "./read.js";
import { WriteView } from "./write.js";

const problem = byId("problem");

// Show an error message, or hide it if there is none.
function report(message) {
  problem.textContent = message ?? "";
  problem.hidden = !message;
}

function chosenView() {
  return document.querySelector("input[name=view]:checked").value;
}

// The views are for language models.
function elsewhere(tasks) {
  return `fine-tuned for tasks, without a view here: ${tasks.join(", ")} (POST /api/predict)`;
}

// Show the chosen view, and only the fields for the architecture of the run.
function arrange(views, models, tasks) {
  const model = models.find((each) => each.name === byId("run").value);
  for (const element of document.querySelectorAll("[data-for]")) {
    element.hidden = !element.dataset.for.split(" ").includes(model.architecture);
  }
  if (document.querySelector(`input[value=${chosenView()}]`).closest("label").hidden) {
    document.querySelector("input[value=read]").checked = true;
  }
  for (const name of Object.keys(views)) byId(name).hidden = name !== chosenView();
  const count = (value) => value.toLocaleString("en");
  byId("facts").textContent = [
    model.architecture,
    `${count(model.parameters)} parameters`,
    `context of ${count(model.context)} tokens`,
    `vocabulary of ${count(model.vocabulary)}`,
    ...(tasks.length ? [elsewhere(tasks)] : []),
  ].join(" · ");
  report();
  views[chosenView()].open(model);
}

async function start() {
  takeToken();
  const { models, tasks } = await ask("/api/models");
  if (!models.length) throw new Error(elsewhere(tasks));
  fillSelect(byId("run"), models.map(({ name }) => [name, name]));
  const views = {
    read: new ReadView(models, report),
    write: new WriteView(report),
    fill: new FillView(report),
  };
  byId("run").addEventListener("change", () => arrange(views, models, tasks));
  for (const id of ["text", "prompt", "fill-text"]) byId(id).addEventListener("input", () => dress(byId(id)));
  document.querySelector(".views").addEventListener("change", () => arrange(views, models, tasks));
  arrange(views, models, tasks);
}

start().catch((error) => report(error.message));
