"use strict";
// The model as a graph: groups of layers first, opened on demand, so that thousands of operations are drawn at once.
(() => {
  const MOST_AT_FIRST = 60;
  const WORDS = report.statuses;
  const SIGNS = { trained: "● ", cut: "◐ ", passed: "○ ", frozen: "○ ", free: "", plain: "" };
  const parts = report.graph.map((part, number) => ({ ...part, number, path: part.group.map((_, k) => part.group.slice(0, k + 1).join("/")) }));
  const panel = document.getElementById("details");
  const opened = new Set();

  // The groups that there are, and what is in each.
  const members = new Map();
  for (const part of parts) for (const path of part.path) members.set(path, [...(members.get(path) || []), part]);

  /** What stands for a part now: the outermost of its groups that is closed, or itself. */
  const shownAs = (part) => part.path.find((path) => !opened.has(path)) ?? part.number;
  const visible = () => new Set(parts.map(shownAs)).size;

  function openAtFirst() {
    for (let again = true; again; ) {
      again = false;
      for (const path of [...members.keys()].sort((a, b) => a.split("/").length - b.split("/").length)) {
        if (opened.has(path)) continue;
        opened.add(path);
        if (visible() > MOST_AT_FIRST) opened.delete(path);
        else again = true;
      }
    }
  }

  function statusOf(inside) {
    const found = ["trained", "cut", "passed", "frozen", "free", "plain"].filter((name) => inside.some((part) => part.status === name));
    const weighed = found.filter((name) => !["free", "plain"].includes(name));
    if (weighed.includes("trained") && weighed.length > 1) return "cut";
    return weighed[0] ?? found[0];
  }

  const short = (text, most = 34) => (text.length <= most ? text : "…" + text.slice(1 - most));
  const lastOf = (layer) => layer.split(layer.includes("/") ? "/" : ".").pop();
  function label(part) {
    const name = lastOf(part.layer);
    const operations = Object.entries(part.operations).map(([op, times]) => (times > 1 ? `${op} ×${times}` : op));
    const said = operations.slice(0, 3).join(", ") + (operations.length > 3 ? ", …" : "");
    return `${SIGNS[part.status]}${short(name)}${part.again > 1 ? ` (${part.again})` : ""}\n${said}`;
  }

  function elements() {
    const made = [];
    const used = new Set();
    const parentOf = (path) => (path.length ? "group:" + path[path.length - 1] : undefined);
    const group = (path, closed) => {
      const id = "group:" + path;
      if (used.has(id)) return;
      used.add(id);
      const steps = path.split("/");
      const outer = members.get(path)[0].path.filter((other) => other.length < path.length);
      outer.forEach((other) => group(other, false));
      const inside = members.get(path);
      const status = statusOf(inside);
      const name = short(steps[steps.length - 1]);
      const flops = inside.reduce((sum, part) => sum + part.flops, 0);
      const text = closed ? `▸ ${SIGNS[status]}${name}\n${inside.length} parts, ${count(flops)} FLOPs` : name;
      made.push({ data: { id, label: text, parent: parentOf(outer), status, path }, classes: closed ? `closed ${status}` : "open" });
    };
    for (const part of parts) {
      const shown = shownAs(part);
      if (shown !== part.number) {
        group(shown, true);
        continue;
      }
      part.path.forEach((path) => group(path, false));
      made.push({ data: { id: String(part.number), label: label(part), parent: parentOf(part.path), status: part.status }, classes: part.status });
    }
    const id = (part) => (shownAs(part) === part.number ? String(part.number) : "group:" + shownAs(part));
    const edges = new Set();
    const edge = (source, target) => {
      const key = source + "→" + target;
      if (source === target || edges.has(key)) return;
      edges.add(key);
      made.push({ data: { id: "edge:" + key, source, target } });
    };
    for (const part of parts) {
      for (const name of part.inputs) {
        if (!used.has("input:" + name)) made.push({ data: { id: "input:" + name, label: short(name) }, classes: "end" });
        used.add("input:" + name);
        edge("input:" + name, id(part));
      }
      part.reads.forEach((read) => edge(id(parts[read]), id(part)));
      for (const name of part.outputs) {
        made.push({ data: { id: "output:" + name, label: short(name) }, classes: "end" });
        edge(id(part), "output:" + name);
      }
    }
    return made;
  }

  function style() {
    const ink = colour("ink");
    const filled = (name) => ({ selector: "." + name, style: { "background-color": colour(name), "border-color": colour(name) } });
    const framed = (name, dashes) => ({ selector: "." + name, style: { "background-color": colour("paper"), "border-color": colour(name), "border-width": 2, "border-style": dashes } });
    return [
      { selector: "node", style: { label: "data(label)", "text-wrap": "wrap", "text-valign": "center", "font-size": 12, color: ink, shape: "round-rectangle", width: 190, height: 52, "background-color": colour("panel"), "border-width": 1, "border-color": colour("line"), "text-max-width": 182, "font-family": "system-ui, sans-serif" } },
      filled("trained"), filled("cut"), framed("passed", "solid"), framed("frozen", "dashed"), filled("free"), filled("plain"),
      { selector: ".trained, .cut", style: { color: dark() ? "#101316" : "#fff" } },
      { selector: ".closed", style: { "border-style": "double", "border-width": 5, "border-color": colour("ink") } },
      { selector: ".end", style: { shape: "ellipse", height: 34, width: 130, "background-color": colour("paper"), "border-color": colour("quiet") } },
      { selector: ".open", style: { "background-color": colour("panel"), "background-opacity": 0.6, "text-valign": "top", "border-color": colour("line"), color: colour("quiet"), padding: 12 } },
      { selector: "edge", style: { width: 1.4, "line-color": colour("quiet"), "target-arrow-color": colour("quiet"), "target-arrow-shape": "triangle", "curve-style": "bezier", "arrow-scale": 0.8, opacity: 0.75 } },
      { selector: ".found", style: { "outline-width": 5, "outline-color": colour("accent"), "outline-offset": 2 } },
      { selector: "node:selected", style: { "outline-width": 4, "outline-color": colour("accent"), "outline-offset": 1 } },
    ];
  }

  const place = document.getElementById("graph");
  openAtFirst();
  const graph = cytoscape({ container: place, style: style(), minZoom: 0.04, maxZoom: 3, boxSelectionEnabled: false, autounselectify: false });
  redraws.push(() => graph.style(style()));

  function layOut(kept) {
    graph.json({ elements: { nodes: [], edges: [] } });
    graph.add(elements());
    graph.layout({ name: "dagre", rankDir: "TB", nodeSep: 18, rankSep: 26, animate: false, fit: false }).run();
    const node = kept ? graph.getElementById(kept) : graph.collection();
    if (node.nonempty()) choose(node, true);
    else showAll();
  }

  /** All of it where that can be read, else its top. */
  function showAll() {
    graph.fit(undefined, 16);
    if (graph.zoom() >= 0.55) return graph.zoom() > 1.1 && (graph.zoom(1.1), graph.center());
    const box = graph.elements().boundingBox();
    const zoom = Math.min(1, Math.max(0.55, (graph.width() - 32) / box.w));
    graph.zoom(zoom);
    graph.pan({ x: graph.width() / 2 - (zoom * (box.x1 + box.x2)) / 2, y: 16 - zoom * box.y1 });
  }

  function choose(node, move) {
    graph.elements(":selected").unselect();
    node.select();
    describe(node);
    if (move) {
      const zoom = Math.max(graph.zoom(), 0.6);
      graph.stop().zoom(zoom);
      graph.center(node);
    }
  }

  function toggle(node) {
    const path = node.data("path");
    if (path === undefined) return;
    if (opened.has(path)) opened.delete(path);
    else opened.add(path);
    layOut(node.id());
  }

  function line(name, value) {
    return element("li", {}, element("strong", { textContent: name + ": " }), String(value));
  }

  function describe(node) {
    const path = node.data("path");
    const inside = path !== undefined ? members.get(path) : parts.filter((part) => String(part.number) === node.id());
    panel.replaceChildren(element("h4", { textContent: path ?? (inside[0] ? inside[0].layer : node.data("label")) }));
    if (!inside.length) return;
    const facts = element("ul");
    facts.append(line("trains", WORDS[statusOf(inside)]));
    const layers = new Map(inside.map((part) => [part.layer, part.layer_flops]));
    PHASES.forEach((phase, k) => facts.append(line(`FLOPs ${phase}`, count([...layers.values()].reduce((sum, flops) => sum + flops[k], 0)))));
    if (path === undefined) {
      facts.append(line("operations", Object.entries(inside[0].operations).map(([op, times]) => `${op} ×${times}`).join(", ")));
      facts.append(line("gives", inside[0].result));
    } else facts.append(line("parts", inside.length));
    panel.append(facts);
    const weights = inside.flatMap((part) => part.weights);
    if (weights.length) {
      panel.append(element("h5", { textContent: "Weights" }));
      const list = element("ul");
      for (const [name, shape, fraction, why] of weights.slice(0, 40)) {
        const trains = fraction === 1 ? "all" : fraction ? `${(100 * fraction).toFixed(0)} %` : "frozen";
        list.append(element("li", {}, element("code", { textContent: name }), ` [${shape.join(", ")}]: ${trains}${why ? `, ${why}` : ""}`));
      }
      if (weights.length > 40) list.append(element("li", { textContent: `and ${weights.length - 40} more` }));
      panel.append(list);
    }
    if (path !== undefined) {
      const button = element("button", { type: "button", textContent: opened.has(path) ? "Close this group" : "Open this group" });
      button.addEventListener("click", () => toggle(node));
      panel.append(button);
    }
  }

  graph.on("tap", "node", (event) => choose(event.target, false));
  graph.on("dbltap", "node", (event) => event.target.data("path") !== undefined && toggle(event.target));

  const zoomBy = (factor) => graph.zoom({ level: graph.zoom() * factor, renderedPosition: { x: graph.width() / 2, y: graph.height() / 2 } });
  const zooms = { in: () => zoomBy(1.3), out: () => zoomBy(1 / 1.3), fit: () => graph.fit(undefined, 16) };
  document.querySelectorAll("[data-zoom]").forEach((button) => button.addEventListener("click", () => zooms[button.dataset.zoom]()));
  document.getElementById("open-all").addEventListener("click", () => { [...members.keys()].forEach((path) => opened.add(path)); layOut(); });
  document.getElementById("close-all").addEventListener("click", () => { opened.clear(); layOut(); });

  /** Along the edges with up and down, among what lies beside with left and right. */
  function step(key) {
    const from = graph.nodes(":selected").first();
    if (from.empty()) return choose(graph.nodes().filter((node) => !node.isParent()).first(), true);
    let next;
    if (key === "ArrowDown") next = from.outgoers("node").first();
    else if (key === "ArrowUp") next = from.incomers("node").first();
    else {
      const { x, y } = from.position();
      const beside = graph.nodes().filter((node) => !node.isParent() && (key === "ArrowRight" ? node.position("x") > x + 1 : node.position("x") < x - 1));
      next = beside.min((node) => Math.abs(node.position("x") - x) + 4 * Math.abs(node.position("y") - y)).ele;
    }
    if (next && next.nonempty && next.nonempty()) choose(next, true);
  }

  place.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const chosen = graph.nodes(":selected").first();
    const done = {
      "+": zooms.in, "=": zooms.in, "-": zooms.out, 0: zooms.fit,
      Enter: () => chosen.nonempty() && toggle(chosen),
      Escape: () => graph.elements().unselect(),
      ArrowDown: step, ArrowUp: step, ArrowLeft: step, ArrowRight: step,
    }[event.key];
    if (!done) return;
    event.preventDefault();
    done(event.key);
  });

  // A search opens the groups of what it finds, and Enter goes from one to the next.
  let turn = 0;
  function find(text, again) {
    const wanted = text.trim().toLowerCase();
    const said = (part) => [part.layer, ...Object.keys(part.operations), ...part.weights.map((weight) => weight[0])].join("\n").toLowerCase();
    const found = wanted ? parts.filter((part) => said(part).includes(wanted)) : [];
    const named = (part) => (part.layer.toLowerCase().includes(wanted) ? 0 : 1);
    found.sort((a, b) => named(a) - named(b) || a.number - b.number);
    graph.nodes().removeClass("found");
    if (!found.length) return wanted && panel.replaceChildren(element("p", { className: "quiet", textContent: `Nothing is called “${text}”.` }));
    turn = again ? (turn + 1) % found.length : 0;
    found[turn].path.forEach((path) => opened.add(path));
    layOut(String(found[turn].number));
    found.forEach((part) => graph.getElementById(shownAs(part) === part.number ? String(part.number) : "group:" + shownAs(part)).addClass("found"));
    panel.prepend(element("p", { className: "quiet", textContent: `${turn + 1} of ${found.length} found; Enter shows the next.` }));
  }
  const search = document.getElementById("search");
  search.addEventListener("input", () => find(search.value, false));
  search.addEventListener("keydown", (event) => {
    if (event.key === "Enter") find(search.value, true);
    if (event.key === "Escape") { search.value = ""; graph.nodes().removeClass("found"); }
  });

  layOut();
  onWidth(place, () => { graph.resize(); if (graph.nodes(":selected").empty()) showAll(); });
})();
