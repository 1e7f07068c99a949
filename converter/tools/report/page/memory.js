"use strict";
// What is alive over a step: a stacked area over the operators in the order of execution.
(() => {
  const MOST_LAYERS = 11;
  const HUES = [212, 24, 145, 280, 48, 185, 340, 95, 255, 10, 165, 310];
  const KINDS = { tensor: "arena: tensors", scratch: "arena: temporaries of kernels", workspace: "workspace of XNNPACK", loop: "inside of a loop", records: "records of the interpreter", copy: "transposed copies" };
  const place = document.getElementById("timeline");
  const now = document.getElementById("now");
  const slider = document.getElementById("operator");
  const choice = document.getElementById("call");
  const stacking = document.getElementById("stack");
  let call, plot, groups, alive, peak;
  // The innermost group of each layer; a model of few layers, or one without groups, is drawn by layer.
  const homes = new Map([...report.graph].reverse().filter((part) => part.group.length).map((part) => [part.layer, part.group.join("/")]));
  if (homes.size && new Set(report.graph.map((part) => part.layer)).size > MOST_LAYERS) stacking.value = "group";
  else if (!homes.size) stacking.querySelector("[value=group]").remove();

  const shade = (k) => `hsl(${HUES[k % HUES.length]} 55% ${dark() ? 58 : 52}%)`;

  /** The group of a piece of memory. */
  function nameOf(piece) {
    const maker = call.maker[piece];
    if (stacking.value === "kind") return KINDS[call.kinds[call.kind[piece]]];
    if (maker < 0) return call.kinds[call.kind[piece]] === "records" ? "(interpreter)" : "(input)";
    if (stacking.value === "phase") return PHASES[call.phase[maker]];
    const layer = call.layers[call.layer[maker]];
    return stacking.value === "layer" ? layer : (homes.get(layer) ?? layer);
  }

  /** Bytes alive by group at each operator: the largest groups, and all others as one. */
  function collect() {
    const length = call.layer.length;
    const changes = new Map();
    alive = new Float64Array(length + 1);
    for (let piece = 0; piece < call.nbytes.length; piece++) {
      const name = nameOf(piece);
      if (!changes.has(name)) changes.set(name, new Float64Array(length + 1));
      for (const to of [changes.get(name), alive]) {
        to[call.first[piece]] += call.nbytes[piece];
        to[call.last[piece] + 1] -= call.nbytes[piece];
      }
    }
    const sums = (values) => { for (let k = 1; k < values.length; k++) values[k] += values[k - 1]; return values; };
    sums(alive);
    peak = alive.reduce((best, value, k) => (value > alive[best] ? k : best), 0);
    const found = [...changes].map(([name, values]) => ({ name, values: sums(values) }));
    found.sort((a, b) => b.values.reduce((x, y) => Math.max(x, y), 0) - a.values.reduce((x, y) => Math.max(x, y), 0));
    const shown = found.slice(0, MOST_LAYERS);
    const rest = found.slice(MOST_LAYERS);
    if (rest.length) {
      const values = new Float64Array(length + 1);
      for (const group of rest) group.values.forEach((value, k) => (values[k] += value));
      shown.push({ name: `${rest.length} others`, values, rest: true });
    }
    groups = shown.map((group, k) => ({ ...group, fill: group.rest ? colour("frozen") : stacking.value === "phase" && PHASES.includes(group.name) ? colour(group.name) : shade(k) }));
  }

  function draw(width) {
    if (plot) plot.destroy();
    const length = call.layer.length;
    const xs = Array.from({ length: length + 1 }, (_, k) => k);
    const stacked = [];
    const sum = new Float64Array(length + 1);
    for (const group of groups) {
      group.values.forEach((value, k) => (sum[k] += value));
      stacked.push(Array.from(sum, (value, k) => (k === length ? sum[length - 1] : value)));
    }
    const planned = call.arena + call.workspace;
    const stepped = uPlot.paths.stepped({ align: 1 });
    const axis = { stroke: colour("quiet"), grid: { stroke: colour("line"), width: 1 }, ticks: { stroke: colour("line") } };
    const marks = (u) => {
      const { ctx, bbox } = u;
      ctx.save();
      const x = (value) => u.valToPos(value, "x", true);
      const y = u.valToPos(planned, "y", true);
      ctx.strokeStyle = colour("ink");
      ctx.setLineDash([6, 4]);
      ctx.beginPath(); ctx.moveTo(bbox.left, y); ctx.lineTo(bbox.left + bbox.width, y); ctx.stroke();
      ctx.font = `${12 * devicePixelRatio}px system-ui, sans-serif`;
      ctx.fillStyle = colour("ink"); ctx.textBaseline = "bottom"; ctx.textAlign = "left";
      ctx.fillText(`held: ${bytes(planned)}`, bbox.left + 6 * devicePixelRatio, y - 2 * devicePixelRatio);
      ctx.strokeStyle = ctx.fillStyle = colour("peak");
      const at = x(peak + 0.5);
      if (at >= bbox.left && at <= bbox.left + bbox.width) {
        const top = u.valToPos(alive[peak], "y", true);
        ctx.setLineDash([3, 3]);
        ctx.beginPath(); ctx.moveTo(at, top); ctx.lineTo(at, bbox.top + bbox.height); ctx.stroke();
        ctx.setLineDash([]); ctx.beginPath(); ctx.arc(at, top, 4 * devicePixelRatio, 0, 7); ctx.fill();
        const words = `peak ${bytes(alive[peak])}`, room = 8 * devicePixelRatio, tall = 18 * devicePixelRatio;
        const wide = ctx.measureText(words).width;
        const left = at > bbox.left + bbox.width / 2 ? at - wide - 2 * room : at + room;
        ctx.fillStyle = colour("paper"); ctx.fillRect(left - room / 2, top, wide + room, tall);
        ctx.fillStyle = colour("peak"); ctx.textBaseline = "middle"; ctx.fillText(words, left, top + tall / 2);
      }
      // Below: the phases.
      for (let from = 0; from < length; ) {
        let to = from;
        while (to < length && call.phase[to] === call.phase[from]) to++;
        ctx.fillStyle = colour(PHASES[call.phase[from]]);
        const left = Math.max(x(from), bbox.left), right = Math.min(x(to), bbox.left + bbox.width);
        if (right > left) ctx.fillRect(left, bbox.top + bbox.height - 4 * devicePixelRatio, right - left, 4 * devicePixelRatio);
        from = to;
      }
      ctx.restore();
    };
    const series = groups.map((group) => ({ label: group.name, stroke: group.fill, fill: group.fill, width: 0, paths: stepped, points: { show: false } }));
    plot = new uPlot(
      {
        width: Math.max(width - 12, 200), height: 320, padding: [14, 10, 0, 0],
        scales: { x: { time: false, range: (u, min, max) => [min, max] }, y: { range: (u, min, max) => [0, Math.max(planned, max) * 1.08] } },
        axes: [{ ...axis, label: "operators in the order of execution", labelSize: 20 }, { ...axis, label: "bytes alive", labelSize: 20, size: 74, incrs: Array.from({ length: 40 }, (_, k) => 2 ** k), values: (u, ticks) => ticks.map(bytes) }],
        series: [{}, ...series.reverse()],
        cursor: { y: false, points: { show: false }, drag: { x: true, y: false } },
        legend: { show: false },
        hooks: { draw: [marks], setCursor: [(u) => u.cursor.idx != null && u.cursor.event && tell(Math.min(u.cursor.idx, length - 1), false)] },
      },
      [xs, ...stacked.reverse()],
      place,
    );
  }

  /** What runs at a place, and what is alive then. */
  function tell(at, move) {
    slider.value = at;
    const partition = call.partition[at];
    const heading = element("p", {}, element("strong", { textContent: `operator ${at + 1} of ${call.layer.length}: ${call.builtins[call.builtin[at]]}` }));
    heading.append(` of ${call.layers[call.layer[at]]}, ${PHASES[call.phase[at]]}, on ${partition < 0 ? "the runtime’s own kernel" : `XNNPACK (partition ${partition + 1})`}. Alive: ${bytes(alive[at])}${at === peak ? ", the peak" : ""}.`);
    const list = element("ol");
    for (const group of [...groups].sort((a, b) => b.values[at] - a.values[at])) {
      if (!group.values[at]) continue;
      const chip = element("span", { className: "chip" });
      chip.style.background = group.fill;
      list.append(element("li", {}, chip, `${group.name}: ${bytes(group.values[at])}`));
    }
    now.replaceChildren(heading, list);
    if (move && plot) plot.setCursor({ left: plot.valToPos(at + 0.5, "x"), top: 10 });
  }

  function show() {
    call = report.memory[choice ? Number(choice.value) : 0];
    slider.max = call.layer.length - 1;
    collect();
    explain(document.getElementById("stacked"), groups);
    if (place.clientWidth) draw(place.clientWidth);
    tell(peak, true);
  }

  slider.addEventListener("input", () => tell(Number(slider.value), true));
  stacking.addEventListener("change", show);
  if (choice) choice.addEventListener("change", show);
  document.getElementById("to-peak").addEventListener("click", () => tell(peak, true));
  redraws.push(show);
  show();
  onWidth(place, () => { draw(place.clientWidth); tell(Number(slider.value), true); });
})();
