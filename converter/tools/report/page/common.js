"use strict";
// What the drawings share. All text from the program goes through textContent: names of layers are anybody's.
const report = JSON.parse(document.getElementById("data").textContent);
document.documentElement.classList.add("scripted");
const PHASES = ["forward", "backward", "update"];

/** A colour of the style sheet, in the scheme that is shown. */
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();

/** An element with text and children. */
function element(tag, options = {}, ...children) {
  const made = Object.assign(document.createElement(tag), options);
  made.append(...children);
  return made;
}

/** A legend: what each colour of a drawing stands for. */
function explain(place, entries) {
  place.replaceChildren(...entries.map(({ name, fill }) => {
    const swatch = element("span", { className: "swatch" });
    swatch.style.background = fill;
    return element("span", { className: "key" }, swatch, name);
  }));
}

/** Bytes in binary units. */
function bytes(number) {
  for (const unit of ["B", "KiB", "MiB"]) {
    if (number < 1024) return unit === "B" ? `${number} B` : `${number.toFixed(1)} ${unit}`;
    number /= 1024;
  }
  return `${number.toFixed(2)} GiB`;
}

/** A number in thousands, millions, ... */
function count(number) {
  for (const unit of ["", " k", " M"]) {
    if (number < 1000) return unit ? number.toFixed(1) + unit : String(Math.round(number));
    number /= 1000;
  }
  return `${number.toFixed(2)} G`;
}

/** What draws again when the scheme of colours changes. Paper is light, and all that is folded is printed. */
const redraws = [];
const scheme = matchMedia("(prefers-color-scheme: dark)");
const redraw = () => redraws.forEach((draw) => draw());
const dark = () => scheme.matches && !document.documentElement.classList.contains("printed");
scheme.addEventListener("change", redraw);
function onPaper(begins) {
  document.documentElement.classList.toggle("printed", begins);
  if (begins) document.querySelectorAll("details").forEach((each) => { each.open = true; });
  redraw();
}
addEventListener("beforeprint", () => onPaper(true));
addEventListener("afterprint", () => onPaper(false));

/** Calls a function with an element's width, now and whenever that changes. */
function onWidth(shown, draw) {
  let width = 0;
  const look = () => {
    if (shown.clientWidth && shown.clientWidth !== width) draw((width = shown.clientWidth));
  };
  new ResizeObserver(look).observe(shown);
  look();
}
