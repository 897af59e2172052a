/* SPDX-License-Identifier: Apache-2.0 */
"use strict";
(() => {
  const { report, remarks } = JSON.parse(document.getElementById("content").textContent);
  const said = new Map(remarks);
  const hidden = new Set();
  const colours = new Map(report.ways.map((way, k) => [way.name, `var(--c${k % 8})`]));
  const SVG = "http://www.w3.org/2000/svg";
  const LEFT = 62, RIGHT = 12, TOP = 10, BOTTOM = 42;

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
  // A figure in the unit that people would say it in.
  const figure = (value, kind) => {
    const scales = { latency: [["ms", 1e3], ["µs", 1], ["ns", 1e-3]], bandwidth: [["GB/s", 1e3], ["MB/s", 1]],
      rate: [["Gop/s", 1e3], ["Mop/s", 1], ["kop/s", 1e-3]] };
    const [unit, one] = (scales[kind] ?? []).find(([, one]) => Math.abs(value) >= 0.9999 * one)
      ?? (scales[kind] ?? [[units[kind], 1]]).at(-1);
    return `${number(value / one)} ${unit}`;
  };
  const place = (series, x) => series.axis === "size" ? bytes(x)
    : series.axis === "threads" ? `${x} thread${x === 1 ? "" : "s"}` : "";
  const shorter = (kind) => kind === "latency";
  const visible = (all) => all.filter((series) => !hidden.has(series.way));

  // Values in a range, whole powers or 1, 2 and 5 times powers of ten, for the grid.
  const logTicks = ([low, high]) => {
    const ticks = [];
    const steps = high / low < 100 ? [1, 2, 5] : [1];
    for (let e = Math.floor(Math.log10(low)); 10 ** e <= high * 1.0001; e++) {
      for (const step of steps) {
        const tick = step * 10 ** e;
        if (tick >= low * 0.9999 && tick <= high * 1.0001) ticks.push(tick);
      }
    }
    const every = Math.ceil(ticks.length / 8);
    return ticks.filter((_, k) => k % every === 0);
  };
  const scale = (values, linear) => {
    const positive = values.filter((value) => value > 0);
    const range = linear ? [0, 100] : [Math.min(...positive) / 1.3, Math.max(...positive) * 1.3];
    const [low, high] = range;
    const part = (value) => linear ? (value - low) / (high - low)
      : (Math.log(Math.max(value, low)) - Math.log(low)) / (Math.log(high) - Math.log(low));
    return { part, ticks: linear ? [0, 25, 50, 75, 100] : logTicks(range) };
  };
  const everything = (points) => points.flatMap((p) => [p.lower, p.upper, p.median, p.ceiling]);

  // Curves over sizes or threads.
  function curves(all, W) {
    const shown = visible(all);
    const { kind, axis } = all[0];
    const H = Math.round(Math.max(260, Math.min(360, W * 0.6)));
    const points = shown.flatMap((series) => series.points);
    const svg = draw("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", tabindex: "0",
      "aria-label": `${all[0].test}: ${(said.get(all[0].test) ?? []).join(" ")}` });
    if (points.length === 0) return { svg };
    const linear = kind === "share";
    const xs = [...new Set(points.map((point) => point.x))].sort((a, b) => a - b);
    const { part, ticks } = scale(everything(points), linear);
    const [first, last] = [xs[0], xs[xs.length - 1]];
    const atX = (x) => first === last ? (LEFT + W - RIGHT) / 2
      : LEFT + 8 + (W - LEFT - RIGHT - 16) * (Math.log(x / first) / Math.log(last / first));
    const atY = (value) => H - BOTTOM - (H - TOP - BOTTOM) * part(value);

    for (const tick of ticks) {
      svg.append(draw("line", { class: "grid", x1: LEFT, x2: W - RIGHT, y1: atY(tick), y2: atY(tick) }));
      svg.append(draw("text", { x: LEFT - 6, y: atY(tick) + 4, "text-anchor": "end" }, figure(tick, kind)));
    }
    const every = Math.ceil(xs.length / Math.max(3, Math.floor(W / 80)));
    xs.forEach((x, k) => {
      if (k % every) return;
      const label = axis === "size" ? bytes(x) : String(x);
      svg.append(draw("line", { class: "grid", x1: atX(x), x2: atX(x), y1: TOP, y2: H - BOTTOM }));
      svg.append(draw("text", { x: atX(x), y: H - BOTTOM + 16, "text-anchor": "middle" }, label));
    });
    const below = { size: "size", threads: "threads of a PE" }[axis];
    svg.append(draw("text", { x: (LEFT + W) / 2, y: H - 6, "text-anchor": "middle" }, below));

    for (const series of shown) {
      const colour = colours.get(series.way);
      const group = draw("g", { "data-way": series.way });
      const line = (of) => series.points.filter((point) => linear || of(point) > 0)
        .map((point, k) => `${k ? "L" : "M"}${atX(point.x).toFixed(1)} ${atY(of(point)).toFixed(1)}`)
        .join("");
      const back = [...series.points].reverse();
      const band = series.points.map((p) => `${atX(p.x).toFixed(1)} ${atY(p.upper).toFixed(1)}`)
        .concat(back.map((p) => `${atX(p.x).toFixed(1)} ${atY(p.lower).toFixed(1)}`));
      group.append(draw("polygon", { points: band.join(" "), style: `fill:${colour}`, opacity: 0.15 }));
      const ceiling = line((point) => point.ceiling ?? 0);
      if (ceiling && !linear) {
        group.append(draw("path", { d: ceiling, fill: "none", style: `stroke:${colour}`,
          "stroke-dasharray": "3 4", "stroke-width": 1.2, class: "ceiling" }));
      }
      group.append(draw("path", { d: line((point) => point.median), fill: "none",
        style: `stroke:${colour}`, "stroke-width": 2, class: "curve" }));
      for (const point of series.points) {
        group.append(draw("circle", { cx: atX(point.x), cy: atY(point.median), r: 2.4,
          style: `fill:${colour}` }));
      }
      svg.append(group);
    }
    const guide = draw("line", { class: "guide", y1: TOP, y2: H - BOTTOM, visibility: "hidden" });
    svg.append(guide);
    return { svg, xs, atX, guide, shown, W };
  }

  // One figure of each way: median, quartiles, 99 % and ceiling on one axis.
  function dots(all, W) {
    const shown = visible(all).filter((series) => series.points.length > 0);
    const { kind } = all[0];
    const [ROW, NAMES, VALUES] = [26, 104, 66];
    const H = TOP + ROW * shown.length + 26;
    const svg = draw("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": all[0].test });
    if (shown.length === 0) return svg;
    const points = shown.map((series) => series.points[0]);
    const { part, ticks } = scale(everything(points).concat(points.map((p) => p.p99)), kind === "share");
    const at = (value) => NAMES + (W - NAMES - VALUES - 12) * part(value);
    const every = Math.ceil(ticks.length / Math.max(2, Math.floor((W - NAMES - VALUES) / 64)));
    ticks.filter((_, k) => k % every === 0).forEach((tick) => {
      svg.append(draw("line", { class: "grid", x1: at(tick), x2: at(tick), y1: TOP, y2: H - 22 }));
      svg.append(draw("text", { x: at(tick), y: H - 6, "text-anchor": "middle" }, figure(tick, kind)));
    });
    shown.forEach((series, k) => {
      const point = series.points[0], y = TOP + ROW * k + ROW / 2, colour = colours.get(series.way);
      const group = draw("g", { "data-way": series.way });
      const line = (from, to, width) => group.append(draw("line", { x1: at(from), x2: at(to), y1: y, y2: y,
        style: `stroke:${colour}`, "stroke-width": width, "stroke-linecap": "round" }));
      if (point.p99) line(point.median, point.p99, 1);
      line(point.lower, point.upper, 5);
      if (point.ceiling) {
        group.append(draw("line", { x1: at(point.ceiling), x2: at(point.ceiling), y1: y - 8, y2: y + 8,
          style: `stroke:${colour}`, "stroke-width": 1.5, "stroke-dasharray": "3 3", class: "ceiling" }));
      }
      group.append(draw("circle", { cx: at(point.median), cy: y, r: 5, style: `fill:${colour}`, class: "dot" }));
      group.append(draw("text", { x: 0, y: y + 4, class: "name" }, series.way));
      group.append(draw("text", { x: W, y: y + 4, "text-anchor": "end", class: "name" },
        figure(point.median, kind)));
      svg.append(group);
    });
    return svg;
  }

  // What the values at one size are: beside the pointer, or by the arrow keys.
  function hover(section, { svg, xs, atX, guide, shown, W }) {
    if (!xs) return;
    const tip = make("div", { class: "tip", hidden: "", "aria-live": "polite" });
    section.append(tip);
    let chosen = -1;
    const leave = () => { chosen = -1; tip.hidden = true; guide.setAttribute("visibility", "hidden"); };
    const show = (x, left, top) => {
      guide.setAttribute("x1", atX(x));
      guide.setAttribute("x2", atX(x));
      guide.setAttribute("visibility", "visible");
      const here = shown.flatMap((series) => {
        const point = series.points.find((point) => point.x === x);
        return point ? [{ series, point }] : [];
      });
      const order = shorter(shown[0].kind) ? 1 : -1;
      here.sort((a, b) => order * (a.point.median - b.point.median));
      const rows = here.map(({ series, point }) => {
        const share = point.of_ceiling === null ? "" : `${Math.round(100 * point.of_ceiling)} % of ceiling`;
        return make("tr", {}, make("td", {}, swatch(series.way), series.way),
          make("td", { class: "number" }, figure(point.median, series.kind)),
          make("td", { class: "dim" }, `${figure(point.lower, series.kind)} to ${figure(point.upper, series.kind)}`),
          make("td", { class: "dim" }, share));
      });
      tip.replaceChildren(make("strong", {}, place(shown[0], x)), make("table", {}, ...rows));
      tip.hidden = false;
      const outer = section.getBoundingClientRect();
      const most = outer.width - tip.offsetWidth - 6;
      tip.style.left = `${Math.max(6, Math.min(left - outer.left + 14, most))}px`;
      tip.style.top = `${top - outer.top + 14}px`;
    };
    svg.addEventListener("pointerleave", leave);
    svg.addEventListener("blur", leave);
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      const at = (event.clientX - box.left) * W / box.width;
      const x = xs.reduce((best, x) => Math.abs(atX(x) - at) < Math.abs(atX(best) - at) ? x : best);
      chosen = xs.indexOf(x);
      show(x, event.clientX, event.clientY);
    });
    svg.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      chosen = Math.max(0, Math.min(xs.length - 1, chosen + step));
      const box = svg.getBoundingClientRect();
      show(xs[chosen], box.left + atX(xs[chosen]) * box.width / W, box.top + 20);
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

  function chapter(test, all, W) {
    const section = make("section", { id: test }, make("h2", {}, test), make("p", { class: "dim" }, all[0].about));
    if (all[0].axis === "none") {
      section.append(dots(all, W));
    } else {
      const drawn = curves(all, W);
      section.append(drawn.svg);
      hover(section, drawn);
      const [best, ...overtakes] = (said.get(test) ?? []).map((line) => make("p", { class: "dim" }, line));
      if (best) section.append(best);
      if (overtakes.length > 0) {
        section.append(make("details", {}, make("summary", {}, "Overtaking"), ...overtakes));
      }
    }
    section.append(make("details", {}, make("summary", {}, `Numbers, ${units[all[0].kind]}`), numbers(visible(all))));
    return section;
  }

  // Of each test the best way at each size, sizes with the same way together.
  function best(tests) {
    const rows = [...tests].flatMap(([test, all]) => {
      const shown = visible(all), kind = all[0].kind;
      const xs = [...new Set(shown.flatMap((series) => series.points.map((p) => p.x)))].sort((a, b) => a - b);
      const runs = [];
      for (const x of xs) {
        const here = shown.flatMap((series) => series.points.filter((p) => p.x === x)
          .map((p) => ({ way: series.way, value: p.median })));
        here.sort((a, b) => (shorter(kind) ? 1 : -1) * (a.value - b.value));
        const [winner, second] = here;
        const gain = second && winner.value > 0 && second.value > 0
          ? Math.max(winner.value / second.value, second.value / winner.value) : null;
        const words = `${place(all[0], x)} ${winner.way} ${figure(winner.value, kind)}`.trim()
          + (gain ? `, ${number(gain)} times as good as ${second.way}` : "");
        const run = runs.at(-1);
        const before = here.find((one) => run && one.way === run.way);
        const off = before ? Math.abs(before.value - winner.value) : Infinity;
        // What is as good but for noise does not take over.
        if (off <= 0.05 * winner.value) run.words.push(words);
        else runs.push({ way: winner.way, x, words: [words] });
      }
      if (runs.length === 0) return [];
      const strip = make("div", { class: "strip" }, ...runs.map(({ way, x, words }) => make("span", {
        class: "run", style: `flex:${words.length} 1 0;--own:${colours.get(way)}`, title: words.join("\n"),
      }, make("b", {}, way), make("i", {}, all[0].axis === "none" ? "" : `from ${place(all[0], x)}`))));
      return [make("div", { class: "test" }, make("a", { href: `#${test}` }, test), strip)];
    });
    document.getElementById("best").replaceChildren(make("h2", {}, "The best way, by size"), ...rows);
  }

  function header() {
    const m = report.machine;
    document.getElementById("machine").textContent = `${m.cpu}, ${m.cores} cores, kernel ${m.kernel}, `
      + `load ${number(m.load)} before the start, ${m.date}. ${report.pes} PEs, ${report.rounds} rounds, `
      + `${report.budget_ms} ms for each point. Lines are medians, bands quartiles, dotted lines ceilings; `
      + "thin lines end at 99 %.";
    const warnings = [];
    if (m.load > m.cores / 2) {
      warnings.push(`The machine was busy: load ${number(m.load)} on ${m.cores} cores before the start. Times of `
        + "what needs two processors at once depend on how the operating system shares processors.");
    }
    if (!report.complete) warnings.push("Not complete: the run was ended before its end.");
    document.getElementById("warnings").replaceChildren(...warnings.map((line) => make("p", {}, line)));
    const used = (way) => report.series.some((series) => series.way === way.name && series.points.length > 0);
    const chips = report.ways.filter(used).map((way) => {
      const box = make("input", { type: "checkbox" });
      box.checked = !hidden.has(way.name);
      box.addEventListener("change", () => {
        if (box.checked) hidden.delete(way.name); else hidden.add(way.name);
        plots();
      });
      const chip = make("label", {}, box, swatch(way.name), way.name);
      const faint = (on) => document.querySelectorAll("svg g[data-way]").forEach((group) =>
        group.classList.toggle("faint", on && group.dataset.way !== way.name && !hidden.has(way.name)));
      chip.addEventListener("pointerenter", () => faint(true));
      chip.addEventListener("pointerleave", () => faint(false));
      return chip;
    });
    document.getElementById("ways").replaceChildren(...chips);
    const ceilings = (way) => {
      const series = report.series.find((series) => series.way === way.name && series.ceiling);
      return series ? `${series.ceiling} (${series.ceiling_mark})` : "";
    };
    const rows = report.ways.map((way) => {
      const state = [way.unusable === null ? `${way.mark}, ${way.place}` : `not usable: ${way.unusable}`,
        ...way.notes, ...way.remarks].join("; ");
      const name = make("td", {}, ...(used(way) ? [swatch(way.name)] : []), way.name);
      return make("tr", {}, name, make("td", {}, state), make("td", {}, ceilings(way)));
    });
    const head = make("tr", {}, ...["Way", "Figures", "Ceiling"].map((text) => make("th", {}, text)));
    document.getElementById("about").replaceChildren(make("h2", {}, "The ways"),
      make("div", { class: "scroll" }, make("table", {}, head, ...rows)));
  }

  const tests = new Map();
  // Curves first: what has one figure needs less room.
  const last = (series) => series.axis === "none" ? 1 : 0;
  for (const series of [...report.series].sort((a, b) => last(a) - last(b))) {
    if (series.points.length === 0) continue;
    if (!tests.has(series.test)) tests.set(series.test, []);
    tests.get(series.test).push(series);
  }

  // Plots are drawn as wide as they are shown, so that their letters keep their size.
  let drawnFor = 0;
  function plots() {
    const main = document.getElementById("plots");
    const columns = main.clientWidth >= 900 ? 2 : 1;
    drawnFor = main.clientWidth;
    const W = Math.max(260, Math.floor((main.clientWidth - 16 * (columns - 1)) / columns) - 34);
    best(tests);
    main.replaceChildren(...[...tests].map(([test, all]) => chapter(test, all, W)));
  }

  header();
  plots();
  window.addEventListener("resize", () => {
    if (document.getElementById("plots").clientWidth !== drawnFor) plots();
  });
})();
