"use strict";
// Curves of losses, and tables that a click on a column sorts.
(() => {
  document.querySelectorAll(".curve").forEach((place) => {
    const run = report.runs[Number(place.dataset.run)];
    let plot;
    const draw = (width) => {
      if (plot) plot.destroy();
      const axis = { stroke: colour("quiet"), grid: { stroke: colour("line"), width: 1 }, ticks: { stroke: colour("line") } };
      const strokes = [colour("forward"), colour("backward"), colour("update"), colour("cut"), colour("accent")];
      const series = run.curves.map((curve, k) => ({ label: curve.name, stroke: strokes[k % strokes.length], width: 1.5, spanGaps: true, dash: k < strokes.length ? [] : [5, 4], points: { show: curve.y.filter((value) => value !== null).length < 40 } }));
      plot = new uPlot(
        { width: Math.max(width - 12, 200), height: 260, padding: [10, 10, 0, 0], scales: { x: { time: false } }, axes: [{ ...axis, label: "step", labelSize: 20 }, { ...axis, label: "loss", labelSize: 20, size: 64 }], series: [{ label: "step" }, ...series], cursor: { drag: { x: true, y: false } } },
        [run.x, ...run.curves.map((curve) => curve.y)],
        place,
      );
      explain(place.parentNode.querySelector(".legend"), run.curves.map((curve, k) => ({ name: curve.name, fill: strokes[k % strokes.length] })));
    };
    onWidth(place, draw);
    redraws.push(() => draw(place.clientWidth));
  });

  document.querySelectorAll("table.sortable").forEach((table) => {
    const heads = [...table.tHead.rows[table.tHead.rows.length - 1].cells];
    const body = table.tBodies[0];
    heads.forEach((head, column) => {
      if (head.tagName !== "TH") return; // drawn, nothing to sort by
      const button = element("button", { type: "button", textContent: head.textContent });
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") !== "descending";
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const value = (row) => { const cell = row.cells[column]; return cell.dataset.value === undefined ? cell.textContent : Number(cell.dataset.value); };
        const order = [...body.rows].sort((a, b) => (value(a) < value(b) ? -1 : value(a) > value(b) ? 1 : 0));
        body.append(...(down ? order.reverse() : order));
      });
    });
  });
})();
