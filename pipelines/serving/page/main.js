// The page of `bytelm serve`: chooses the run and the view.

import { ask, takeToken } from "./api.js";
import { ChatView } from "./chat.js";
import { byId, dress, fillSelect } from "./dom.js";
import { FillView } from "./fill.js";
import { InsideView } from "./inside.js";
import { PredictView } from "./predict.js";
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

function chooseView(name) {
  document.querySelector(`input[name=view][value=${name}]`).checked = true;
}

// Show the chosen view, or else the first of the run, and only the fields for the architecture of the run.
function arrange(views, models) {
  const model = models.find((each) => each.name === byId("run").value);
  for (const element of document.querySelectorAll("[data-for]")) {
    element.hidden = !element.dataset.for.split(" ").includes(model.architecture);
  }
  for (const input of document.querySelectorAll("input[name=view]")) {
    input.closest("label").hidden = !model.views.includes(input.value);
  }
  if (!model.views.includes(chosenView())) chooseView(model.views[0]);
  for (const name of Object.keys(views)) byId(name).hidden = name !== chosenView();
  const count = (value) => value.toLocaleString("en");
  byId("facts").textContent = [
    model.architecture,
    `${count(model.parameters)} parameters`,
    `context of ${count(model.context)} tokens`,
    `vocabulary of ${count(model.vocabulary)}`,
    ...(model.task ? [`fine-tuned for the task ${model.task}`] : []),
  ].join(" · ");
  report();
  views[chosenView()].open(model);
}

async function start() {
  takeToken();
  const { models } = await ask("/api/models");
  fillSelect(byId("run"), models.map(({ name }) => [name, name]));
  const views = {
    predict: new PredictView(report),
    chat: new ChatView(report),
    read: new ReadView(models.filter((model) => model.views.includes("read")), report),
    write: new WriteView(report),
    fill: new FillView(report),
    inside: new InsideView(report),
  };
  byId("run").addEventListener("change", () => arrange(views, models));
  for (const id of ["text", "prompt", "fill-text", "inside-text"]) byId(id).addEventListener("input", () => dress(byId(id)));
  document.querySelector(".views").addEventListener("change", () => arrange(views, models));
  chooseView(models[0].views[0]);
  arrange(views, models);
}

start().catch((error) => report(error.message));
