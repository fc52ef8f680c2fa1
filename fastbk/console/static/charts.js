// Charts by uPlot, in place of the SVG images that a page comes with.
"use strict";

const HEIGHT_PX = 170;
const drawn = new Map();

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function amount(value) {
  if (value == null) return "–";
  if (Math.abs(value) >= 1e6) return `${+(value / 1e6).toPrecision(3)} M`;
  if (Math.abs(value) >= 1e4) return `${+(value / 1e3).toPrecision(3)} k`;
  return `${+value.toPrecision(3)}`;
}

// Times are UTC here as everywhere in the console.
function clock(at_s, hasSeconds) {
  return at_s == null ? "–" : new Date(1000 * at_s).toISOString().slice(11, hasSeconds ? 19 : 16);
}

// What a legend shows while nobody points at the chart: the newest point.
function orLast(chart, series, value, index) {
  return index == null ? chart.data[series].findLast((one) => one != null) : value;
}

function options(figure, width) {
  const unit = figure.dataset.unit;
  const labels = JSON.parse(figure.dataset.labels);
  const strokes = ["--accent", "--warn", "--ok", "--bad"].map(colour);
  const names = JSON.parse(figure.dataset.names);
  const axis = { stroke: colour("--dim"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line"), width: 1 }, font: "12px system-ui, sans-serif" };
  return {
    width,
    height: HEIGHT_PX,
    legend: { show: true, live: true },
    cursor: { y: false },
    scales: { y: { range: (_, low, high) => [0, Math.max(high ?? 0, 1e-9) * 1.1 || 1] } },
    axes: [{ ...axis, space: 70, size: 34, values: (_, ticks) => ticks.map((at) => clock(at, ticks.length > 1 && ticks[1] - ticks[0] < 60)) }, { ...axis, size: 52, values: (_, ticks) => ticks.map(amount) }],
    series: [
      { label: "UTC", value: (chart, at, series, index) => clock(orLast(chart, series, at, index), true) },
      ...names.map((_, at) => ({
        label: labels[at] || unit,
        stroke: strokes[at % strokes.length],
        fill: names.length === 1 ? colour("--area") : undefined,
        width: 1.5,
        points: { show: false },
        value: (chart, value, series, index) => amount(orLast(chart, series, value, index)) + (labels[at] ? ` ${unit}` : ""),
      })),
    ],
  };
}

async function points(figure) {
  const query = new URLSearchParams(JSON.parse(figure.dataset.names).map((name) => ["name", name]));
  const answer = await fetch(`/series?${query}`, { signal: AbortSignal.timeout(15000) });
  if (!answer.ok) return null;
  const { times, series } = await answer.json();
  return times.length > 1 ? [times, ...series] : null;
}

async function draw(figure, afresh = false) {
  const data = await points(figure).catch(() => null);
  if (!data || !figure.isConnected) return;
  const plot = figure.querySelector(".plot");
  if (afresh) drawn.get(figure)?.destroy(), drawn.delete(figure);
  const chart = drawn.get(figure);
  if (chart) {
    chart.setData(data);
    return;
  }
  plot.replaceChildren();
  figure.setAttribute("data-drawn", "");
  drawn.set(figure, new uPlot(options(figure, plot.clientWidth), data, plot));
}

function drawAll(afresh = false) {
  for (const figure of drawn.keys()) if (!figure.isConnected) drawn.get(figure).destroy(), drawn.delete(figure);
  for (const figure of document.querySelectorAll("figure[data-chart]")) draw(figure, afresh);
}

if (typeof uPlot === "function") {
  drawAll();
  document.addEventListener("console:refreshed", () => drawAll());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawAll(true));
  new ResizeObserver(() => {
    for (const [figure, chart] of drawn) chart.setSize({ width: figure.querySelector(".plot").clientWidth, height: HEIGHT_PX });
  }).observe(document.querySelector("main"));
}
