"use strict";
const steps = JSON.parse(document.getElementById("steps").textContent);
const svg = document.querySelector("svg");
const nodes = [...document.querySelectorAll(".node")];
const edges = [...document.querySelectorAll("path.edge")];
const search = document.querySelector("input");
const found = document.getElementById("found");
const whole = svg.viewBox.baseVal;
const view = { x: whole.x, y: whole.y, width: whole.width, height: whole.height };

function show() {
  svg.setAttribute("viewBox", `${view.x} ${view.y} ${view.width} ${view.height}`);
}

// At first as wide as it can be read, with the inputs at the top.
function begin() {
  const box = svg.getBoundingClientRect();
  const width = Math.max(1, box.width), height = Math.max(1, box.height);
  const scale = Math.min(1.1, Math.max(0.6, width / whole.width));
  view.width = width / scale;
  view.height = height / scale;
  const first = nodes[0]?.getBBox() ?? whole;
  const middle = scale * whole.width > width ? first.x + first.width / 2 : whole.width / 2;
  view.x = middle - view.width / 2;
  view.y = whole.y;
  show();
}

function center(node) {
  const box = node.getBBox();
  view.x = box.x + box.width / 2 - view.width / 2;
  view.y = box.y + box.height / 2 - view.height / 2;
  show();
}

function choose(node) {
  const at = node.dataset.at;
  for (const one of nodes) one.classList.toggle("chosen", one === node);
  for (const edge of edges) {
    edge.classList.toggle("chosen", edge.dataset.upper === at || edge.dataset.lower === at);
  }
  const step = steps[Number(at)];
  document.getElementById("name").textContent = step.name;
  const list = document.getElementById("details");
  list.replaceChildren();
  for (const [key, value] of step.details) {
    const term = document.createElement("dt"), text = document.createElement("dd");
    term.textContent = key;
    text.textContent = value;
    list.append(term, text);
  }
}

for (const node of nodes) {
  node.addEventListener("click", () => choose(node));
  node.addEventListener("keydown", (event) => {
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      choose(node);
    }
  });
}

let matches = [];
let next = 0;
search.addEventListener("input", () => {
  const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
  matches = nodes.filter((node) => {
    const text = steps[Number(node.dataset.at)].text.toLowerCase();
    const matched = words.every((word) => text.includes(word));
    node.classList.toggle("dim", !matched);
    return matched && words.length > 0;
  });
  next = 0;
  found.textContent = words.length ? `${matches.length} of ${nodes.length}` : "";
});
search.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || !matches.length) return;
  const node = matches[next % matches.length];
  next += 1;
  choose(node);
  center(node);
});

svg.addEventListener("wheel", (event) => {
  event.preventDefault();
  const box = svg.getBoundingClientRect();
  const by = Math.exp(event.deltaY * 0.001);
  const x = (event.clientX - box.left) / box.width, y = (event.clientY - box.top) / box.height;
  view.x += view.width * (1 - by) * x;
  view.y += view.height * (1 - by) * y;
  view.width *= by;
  view.height *= by;
  show();
}, { passive: false });

let drag = null;
svg.addEventListener("pointerdown", (event) => {
  drag = { x: event.clientX, y: event.clientY };
});
window.addEventListener("pointermove", (event) => {
  if (!drag) return;
  const box = svg.getBoundingClientRect();
  view.x -= (event.clientX - drag.x) * view.width / box.width;
  view.y -= (event.clientY - drag.y) * view.height / box.height;
  drag = { x: event.clientX, y: event.clientY };
  show();
});
window.addEventListener("pointerup", () => { drag = null; });

begin();
