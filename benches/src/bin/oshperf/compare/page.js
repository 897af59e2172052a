/* SPDX-License-Identifier: Apache-2.0 */
"use strict";
(() => {
  const { report, remarks } = JSON.parse(document.getElementById("content").textContent);
  const said = new Map(remarks);
  const hidden = new Set();
  const colours = new Map(report.ways.map((way, k) => [way.name, `var(--c${k % 8})`]));
  const SVG = "http://www.w3.org/2000/svg";
  const W = 560, H = 330, LEFT = 58, RIGHT = 12, TOP = 10, BOTTOM = 42;

  // An element with attributes; children are elements or text, never markup.
  const make = (name, attributes = {}, ...children) => {
    const element = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.append(...children);
    return element;
  };
  const draw = (name, attributes = {}, text) => {
    const element = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (text !== undefined) element.textContent = text;
    return element;
  };
  const swatch = (way) => make("span", { class: "swatch", style: `background:${colours.get(way)}` });
  const number = (value) => {
    if (value === null || value === undefined) return "";
    const size = Math.abs(value);
    if (size >= 1000) return Math.round(value).toLocaleString("en");
    return size === 0 ? "0" : String(Number(value.toPrecision(3)));
  };
  const bytes = (x) => x >= 1048576 && x % 1048576 === 0 ? `${x / 1048576} MiB`
    : x >= 1024 && x % 1024 === 0 ? `${x / 1024} KiB` : `${x} B`;
  const units = { latency: "µs", bandwidth: "MB/s", rate: "Mop/s", share: "%" };
  const place = (series, x) => series.axis === "size" ? bytes(x)
    : series.axis === "threads" ? `${x} thread${x === 1 ? "" : "s"}` : "";

  // Values in a range, whole powers or 1, 2 and 5 times powers of ten, for the grid.
  const logTicks = ([low, high], base) => {
    const ticks = [];
    const steps = base === 10 && high / low < 100 ? [1, 2, 5] : [1];
    for (let e = Math.floor(Math.log(low) / Math.log(base)); base ** e <= high * 1.0001; e++) {
      for (const step of steps) {
        const tick = step * base ** e;
        if (tick >= low * 0.9999 && tick <= high * 1.0001) ticks.push(tick);
      }
    }
    const every = Math.ceil(ticks.length / 8);
    return ticks.filter((_, k) => k % every === 0);
  };

  function plot(all) {
    const shown = all.filter((series) => !hidden.has(series.way));
    const { kind, axis } = all[0];
    const points = shown.flatMap((series) => series.points);
    const svg = draw("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": all[0].test });
    if (points.length === 0) return { svg };
    const linear = kind === "share";
    const xs = [...new Set(points.map((point) => point.x))].sort((a, b) => a - b);
    const values = points.flatMap((p) => [p.lower, p.upper, p.median, p.ceiling])
      .filter((value) => value > 0);
    const range = linear ? [0, 100] : [Math.min(...values) / 1.3, Math.max(...values) * 1.3];
    const [first, last] = [xs[0], xs[xs.length - 1]];
    const part = (value, [low, high]) => linear ? (value - low) / (high - low)
      : (Math.log(Math.max(value, low)) - Math.log(low)) / (Math.log(high) - Math.log(low));
    const atX = (x) => first === last ? (LEFT + W - RIGHT) / 2
      : LEFT + 8 + (W - LEFT - RIGHT - 16) * (Math.log(x / first) / Math.log(last / first));
    const atY = (value) => H - BOTTOM - (H - TOP - BOTTOM) * part(value, range);

    for (const tick of linear ? [0, 25, 50, 75, 100] : logTicks(range, 10)) {
      svg.append(draw("line", { class: "grid", x1: LEFT, x2: W - RIGHT, y1: atY(tick), y2: atY(tick) }));
      svg.append(draw("text", { x: LEFT - 6, y: atY(tick) + 4, "text-anchor": "end" }, number(tick)));
    }
    const every = Math.ceil(xs.length / 7);
    xs.forEach((x, k) => {
      if (k % every) return;
      const label = axis === "size" ? bytes(x) : String(x);
      svg.append(draw("text", { x: atX(x), y: H - BOTTOM + 16, "text-anchor": "middle" }, label));
    });
    const below = { size: "size", threads: "threads of a PE" }[axis];
    svg.append(draw("text", { x: (LEFT + W) / 2, y: H - 6, "text-anchor": "middle" }, below));
    svg.append(draw("text", { x: -(TOP + H - BOTTOM) / 2, y: 12, "text-anchor": "middle",
      transform: "rotate(-90)" }, units[kind]));

    for (const series of shown) {
      const colour = colours.get(series.way);
      const line = (of) => series.points.filter((point) => linear || of(point) > 0)
        .map((point, k) => `${k ? "L" : "M"}${atX(point.x).toFixed(1)} ${atY(of(point)).toFixed(1)}`)
        .join("");
      const back = [...series.points].reverse();
      const band = series.points.map((p) => `${atX(p.x).toFixed(1)} ${atY(p.upper).toFixed(1)}`)
        .concat(back.map((p) => `${atX(p.x).toFixed(1)} ${atY(p.lower).toFixed(1)}`));
      svg.append(draw("polygon", { points: band.join(" "), style: `fill:${colour}`, opacity: 0.15 }));
      const ceiling = line((point) => point.ceiling ?? 0);
      if (ceiling && !linear) {
        svg.append(draw("path", { d: ceiling, fill: "none", style: `stroke:${colour}`,
          "stroke-dasharray": "3 4", "stroke-width": 1.2, class: "ceiling" }));
      }
      svg.append(draw("path", { d: line((point) => point.median), fill: "none",
        style: `stroke:${colour}`, "stroke-width": 2, class: "curve" }));
      for (const point of series.points) {
        svg.append(draw("circle", { cx: atX(point.x), cy: atY(point.median), r: 2.4,
          style: `fill:${colour}` }));
      }
    }
    const guide = draw("line", { class: "guide", y1: TOP, y2: H - BOTTOM, visibility: "hidden" });
    svg.append(guide);
    return { svg, xs, atX, guide, shown };
  }

  // What the values at the nearest size are, beside the pointer.
  function hover(section, { svg, xs, atX, guide, shown }) {
    if (!xs) return;
    const tip = make("div", { class: "tip", hidden: "" });
    section.append(tip);
    const leave = () => { tip.hidden = true; guide.setAttribute("visibility", "hidden"); };
    svg.addEventListener("pointerleave", leave);
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      const at = (event.clientX - box.left) * W / box.width;
      const x = xs.reduce((best, x) => Math.abs(atX(x) - at) < Math.abs(atX(best) - at) ? x : best);
      guide.setAttribute("x1", atX(x));
      guide.setAttribute("x2", atX(x));
      guide.setAttribute("visibility", "visible");
      const rows = shown.flatMap((series) => {
        const point = series.points.find((point) => point.x === x);
        if (!point) return [];
        const unit = units[series.kind];
        const share = point.of_ceiling === null ? "" : `${Math.round(100 * point.of_ceiling)} % of ceiling`;
        return [make("tr", {}, make("td", {}, swatch(series.way), series.way),
          make("td", { class: "number" }, `${number(point.median)} ${unit}`),
          make("td", { class: "dim" }, `${number(point.lower)} to ${number(point.upper)}`),
          make("td", { class: "dim" }, share))];
      });
      tip.replaceChildren(make("strong", {}, place(shown[0], x)), make("table", {}, ...rows));
      tip.hidden = false;
      const outer = section.getBoundingClientRect();
      const left = event.clientX - outer.left + 14;
      const most = outer.width - tip.offsetWidth - 6;
      tip.style.left = `${Math.max(6, Math.min(left, most))}px`;
      tip.style.top = `${event.clientY - outer.top + 14}px`;
    });
  }

  function numbers(all) {
    const heads = ["Way", "", "Median", "25 %", "75 %", "99 %", "CPU µs", "Ceiling", "Of it"];
    const cells = (row) => row.map((text, k) => make("td", k > 1 ? { class: "number" } : {}, text));
    const rows = all.flatMap((series) => series.points.map((p) => make("tr", {}, ...cells([
      series.way, place(series, p.x), number(p.median), number(p.lower), number(p.upper),
      number(p.p99), number(p.cpu_us), number(p.ceiling),
      p.of_ceiling === null ? "" : `${(100 * p.of_ceiling).toFixed(0)} %`]))));
    const head = make("tr", {}, ...heads.map((text, k) => make("th", k > 1 ? { class: "number" } : {}, text)));
    return make("div", { class: "scroll" }, make("table", {}, head, ...rows));
  }

  function chapter(test, all) {
    const unit = units[all[0].kind];
    const section = make("section", { id: test }, make("h2", {}, `${test}, ${unit}`),
      make("p", { class: "dim" }, all[0].about));
    const visible = all.filter((series) => !hidden.has(series.way));
    if (all[0].axis === "none") {
      section.append(numbers(visible));
    } else {
      const drawn = plot(all);
      section.append(drawn.svg);
      hover(section, drawn);
      const [best, ...overtakes] = (said.get(test) ?? []).map((line) => make("p", { class: "dim" }, line));
      if (best) section.append(best);
      if (overtakes.length > 0) {
        section.append(make("details", {}, make("summary", {}, "Overtaking"), ...overtakes));
      }
      section.append(make("details", {}, make("summary", {}, "Numbers"), numbers(visible)));
    }
    return section;
  }

  function header() {
    const m = report.machine;
    document.getElementById("machine").textContent = `${m.cpu}, ${m.cores} cores, kernel ${m.kernel}, `
      + `load ${m.load} before the start, ${m.date}. ${report.pes} PEs, ${report.rounds} rounds, `
      + `${report.budget_ms} ms for each point. Lines are medians, bands quartiles, dotted lines ceilings.`
      + (report.complete ? "" : " Not complete: the run was ended before its end.");
    const ceilings = (way) => {
      const series = report.series.find((series) => series.way === way.name && series.ceiling);
      return series ? `${series.ceiling} (${series.ceiling_mark})` : "";
    };
    const rows = report.ways.map((way) => {
      const box = make("input", { type: "checkbox" });
      box.checked = !hidden.has(way.name);
      box.disabled = !report.series.some((series) => series.way === way.name);
      box.addEventListener("change", () => {
        if (box.checked) hidden.delete(way.name); else hidden.add(way.name);
        plots();
      });
      const name = make("label", {}, box, " ", swatch(way.name), way.name);
      const state = [way.unusable === null ? `${way.mark}, ${way.place}` : `not usable: ${way.unusable}`,
        ...way.notes].join("; ");
      return make("tr", {}, make("td", {}, name), make("td", {}, state), make("td", {}, ceilings(way)));
    });
    const head = make("tr", {}, ...["Way", "Figures", "Ceiling"].map((text) => make("th", {}, text)));
    document.getElementById("ways").replaceChildren(make("table", {}, head, ...rows));
  }

  function plots() {
    const tests = new Map();
    for (const series of report.series) {
      if (series.points.length === 0) continue;
      if (!tests.has(series.test)) tests.set(series.test, []);
      tests.get(series.test).push(series);
    }
    const chapters = [...tests].map(([test, all]) => chapter(test, all));
    document.getElementById("plots").replaceChildren(...chapters);
  }

  header();
  plots();
})();
