// Charts: uPlot for lines; small canvases and SVG for the rest.
import uPlot from "./vendor/uplot.js";
import { html, useEffect, useRef, useState, useThemeVersion, colour, cssColour, number, duration, plural } from "./lib.js";

export function Sparkline({ values, label }) {
  const known = (values ?? []).filter((v) => v !== null);
  if (known.length < 2) return html`<span class="muted">${known.length ? number(known[0]) : "–"}</span>`;
  const low = Math.min(...known), high = Math.max(...known), span = high - low || 1;
  const w = 96, hgt = 26;
  let path = "", pen = "M";
  values.forEach((v, i) => {
    if (v === null) { pen = "M"; return; }
    const x = (i / (values.length - 1)) * (w - 4) + 2, y = hgt - 3 - ((v - low) / span) * (hgt - 6);
    path += `${pen}${x.toFixed(1)} ${y.toFixed(1)}`;
    pen = "L";
  });
  return html`<svg class="spark" viewBox=${`0 0 ${w} ${hgt}`} role="img" aria-label=${label ?? "trend of the metric"}>
    <path d=${path} fill="none" stroke="currentColor" stroke-width="1.5" stroke-linejoin="round" /></svg>`;
}

export function smooth(values, weight) {
  if (!weight) return values;
  let last = null, count = 0;
  return values.map((value) => {
    if (value === null) return null;
    last = last === null ? 0 : last;
    last = last * weight + (1 - weight) * value;
    count += 1;
    return last / (1 - weight ** count);   // without this the first values would begin at 0
  });
}

// lines: [{label, x, y, faint?}]
// Reports and steps are whole numbers: an axis of them has no 1.5.
const STEPS = Array.from({ length: 13 }, (_, power) => [1, 2, 5].map((one) => one * 10 ** power)).flat();

export function Chart({ title, sub, lines, byTime, whole, fromZero, log, weight, height = 190, range, onZoom, format = number, children }) {
  const box = useRef(null), plot = useRef(null), values = useRef(null);
  const theme = useThemeVersion();
  const shape = JSON.stringify([lines.map((l) => [l.label, l.colour]), byTime, whole, log, Boolean(weight), height, theme]);
  const zoom = useRef(onZoom), newest = useRef(lines);
  zoom.current = onZoom;
  newest.current = lines;
  const data = () => {
    const tables = lines.flatMap((line) => {
      const y = log ? line.y.map((v) => (v !== null && v > 0 ? v : null)) : line.y;
      return weight ? [[line.x, y], [line.x, smooth(y, weight)]] : [[line.x, y]];
    });
    const usable = tables.map(([x, y]) => ordered(x, y));
    return usable.length === 1 ? usable[0] : uPlot.join(usable);
  };
  useEffect(() => {
    const text = cssColour("--muted"), grid = cssColour("--line"), font = "11px " + cssColour("--font");
    const stroke = (i) => (lines.length === 1 && lines[i].colour === undefined ? cssColour("--accent") : colour(lines[i].colour ?? i));
    const series = [{}];
    lines.forEach((line, i) => {
      if (weight) series.push({ stroke: stroke(i) + "55", width: 1, points: { show: false }, spanGaps: false });
      series.push({ stroke: stroke(i), width: line.dots ? 0 : 1.6, spanGaps: false, points: { show: () => Boolean(line.dots) || newest.current[i]?.x.length < 3, size: 5, fill: stroke(i) } });
    });
    const axis = { stroke: text, font, grid: { stroke: grid, width: 1 }, ticks: { show: false } };
    const options = {
      width: box.current.clientWidth || 300, height,
      legend: { show: false },
      cursor: { drag: { x: true, y: false, setScale: false }, points: { size: 6 } },
      scales: { x: { time: Boolean(byTime) }, y: log ? { distr: 3 } : fromZero ? { range: (_, low, high) => [0, high > 0 ? high * 1.1 : 1] } : {} },
      padding: [8, 18, 0, 0],
      axes: [{ ...axis, size: 26, ...(byTime ? { space: 80, values: (_, splits) => splits.map(clock) } : whole ? { incrs: STEPS } : {}) }, { ...axis, size: 56, values: (_, splits) => splits.map((v) => (v === null ? "" : format(v))) }],
      series,
      hooks: {
        setCursor: [(u) => show(u)],
        setSelect: [(u) => {
          if (u.select.width < 6) return;
          const low = u.posToVal(u.select.left, "x"), high = u.posToVal(u.select.left + u.select.width, "x");
          u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
          zoom.current?.([low, high]);
        }],
      },
    };
    const chart = new uPlot(options, data(), box.current);
    plot.current = chart;
    chart.over.addEventListener("dblclick", () => zoom.current?.(null));
    const observer = new ResizeObserver(() => {
      if (box.current) chart.setSize({ width: box.current.clientWidth, height });
    });
    observer.observe(box.current);
    return () => { observer.disconnect(); chart.destroy(); plot.current = null; };
  }, [shape]);
  useEffect(() => {
    if (!plot.current) return;
    plot.current.setData(data(), true);
    if (range) plot.current.setScale("x", { min: range[0], max: range[1] });
  }, [lines, weight, range, shape]);
  const show = (u) => {
    if (!values.current) return;
    const index = u.cursor.idx;
    const per = weight ? 2 : 1;
    const spans = values.current.querySelectorAll("b");
    newest.current.forEach((line, i) => {
      const column = u.data[1 + i * per + (per - 1)];
      let at = index;
      while (at !== null && at >= 0 && (column?.[at] === null || column?.[at] === undefined)) at -= 1;
      const value = index === null || index === undefined ? last(line.y) : column?.[at];
      // The text node stays the view library's own: it will write there, too.
      if (spans[i]) spans[i].firstChild.data = format(value ?? null);
    });
    const where = values.current.querySelector("i.at");
    if (where) {
      const x = index === null || index === undefined ? null : u.data[0][index];
      where.textContent = x === null ? "" : byTime ? clock(x) : `at ${number(x)}`;
    }
  };
  const summary = `${title}: ` + lines.map((l) => `${l.label} ${format(last(l.y))}`).join(", ");
  return html`<figure class="chart" aria-label=${summary}>
    <figcaption><span class="title" title=${title}>${title}</span>${sub && html`<span class="sub">${sub}</span>`}
      <span class="at-value" ref=${values}>${lines.slice(0, 12).map((line, i) => html`<span class="value" key=${line.label}>
        ${lines.length > 1 && html`<i class=${`dot c${((line.colour ?? i) % 8) + 1}`}></i>`}${lines.length > 1 ? line.label : ""} <b>${format(last(line.y))}</b></span>`)}<i class="at"></i></span>
      ${children}
      ${range && onZoom && html`<button type="button" class="quiet" onClick=${() => onZoom(null)}>Whole</button>`}
    </figcaption>
    <div ref=${box} class="plot" role="img" aria-label=${summary}></div>
  </figure>`;
}

const clock = (time) => new Date(time * 1000).toLocaleTimeString("sv-SE");

const last = (values) => {
  for (let i = values.length - 1; i >= 0; i -= 1) if (values[i] !== null) return values[i];
  return null;
};

// uPlot wants x in order. A restart goes back: what follows is then sorted in.
function ordered(x, y) {
  for (let i = 1; i < x.length; i += 1) {
    if (x[i] < x[i - 1]) {
      const order = x.map((_, j) => j).sort((a, b) => x[a] - x[b] || a - b);
      return [order.map((j) => x[j]), order.map((j) => y[j])];
    }
  }
  return [x, y];
}

// Who is late: ranks down, reports across; darker is later.
export function LateRanks({ columns }) {
  const canvas = useRef(null);
  const theme = useThemeVersion();
  const [at, setAt] = useState(null);
  const ranks = Math.max(0, ...columns.map((c) => c.seconds.length));
  const worst = Math.max(1e-6, ...columns.flatMap((c) => c.seconds));
  const rowHeight = Math.max(8, Math.min(26, 220 / ranks));
  useEffect(() => {
    const node = canvas.current;
    if (!node || !ranks) return;
    const width = node.clientWidth || 600, height = rowHeight * ranks, ratio = devicePixelRatio || 1;
    node.width = width * ratio;
    node.height = height * ratio;
    const draw = node.getContext("2d");
    draw.scale(ratio, ratio);
    const step = width / columns.length;
    draw.fillStyle = cssColour("--surface-2");
    draw.fillRect(0, 0, width, height);
    const hot = cssColour("--late");
    columns.forEach((column, x) => column.seconds.forEach((seconds, rank) => {
      draw.globalAlpha = Math.sqrt(seconds / worst);
      draw.fillStyle = hot;
      draw.fillRect(x * step, rank * rowHeight, Math.max(step - (step > 6 ? 1 : 0), 1), rowHeight - 1);
    }));
    draw.globalAlpha = 1;
  }, [columns, theme, ranks]);
  const total = Array.from({ length: ranks }, (_, rank) => {
    const seen = columns.filter((c) => rank < c.seconds.length);
    return seen.reduce((sum, c) => sum + c.seconds[rank], 0) / Math.max(seen.length, 1);
  });
  const latest = total.indexOf(Math.max(...total));
  const move = (event) => {
    const box = canvas.current.getBoundingClientRect();
    const column = columns[Math.floor(((event.clientX - box.left) / box.width) * columns.length)];
    const rank = Math.floor((event.clientY - box.top) / rowHeight);
    if (column && rank < column.seconds.length) setAt({ column, rank });
  };
  const sentence = `Rank ${latest} comes last most: ${duration(total[latest])} after the first, on average.`;
  return html`<div class="late">
    <p class="muted">${at ? html`Rank ${at.rank}, ${at.column.first === at.column.last ? `report ${number(at.column.first)}` : `reports ${number(at.column.first)}–${number(at.column.last)}`}: ${duration(at.column.seconds[at.rank])} after the first` : sentence}</p>
    <div class="heat"><ol class="ranks" style=${{ fontSize: rowHeight < 12 ? "0" : "11px" }}>${total.map((_, rank) => html`<li key=${rank} style=${{ height: `${rowHeight}px` }}>${rank}</li>`)}</ol>
    <canvas ref=${canvas} style=${{ height: `${rowHeight * ranks}px` }} role="img" aria-label=${sentence} onMouseMove=${move} onMouseLeave=${() => setAt(null)}></canvas></div>
    <p class="axis muted"><span>report ${number(columns[0].first)}</span><span>up to ${duration(worst)}</span><span>report ${number(columns[columns.length - 1].last)}</span></p>
  </div>`;
}

// Attempts and what ended them, on one line of time.
export function TimeLine({ attempts, failures, stops, checkpoints, started, ended, running }) {
  const begin = started ?? attempts[0]?.time ?? 0;
  const now = running ? Date.now() / 1000 : ended ?? Math.max(begin, ...attempts.map((a) => a.time), ...failures.map((f) => f.time));
  const span = Math.max(now - begin, 1e-3);
  const place = (time) => `${Math.min(Math.max(((time - begin) / span) * 100, 0), 100)}%`;
  const ends = (attempt, index) => {
    const failure = failures.find((f) => f.attempt === attempt.attempt);
    const stop = stops.find((s) => s.attempt === attempt.attempt);
    return failure?.time ?? stop?.time ?? attempts[index + 1]?.time ?? now;
  };
  return html`<div class="timeline"><div class="track">
    ${attempts.map((attempt, i) => {
      const failed = failures.some((f) => f.attempt === attempt.attempt);
      const from = attempt.time - (attempt.warmup ?? 0), until = ends(attempt, i);
      const text = `attempt ${attempt.attempt}, ${plural(attempt.size, "worker")}, ${duration(until - attempt.time)}${failed ? ", failed" : ""}`;
      return html`<span key=${i} class=${failed ? "attempt failed" : "attempt"} title=${text} role="img" aria-label=${text}
        style=${{ left: place(from), width: `calc(${place(until)} - ${place(from)})` }}><em style=${{ width: `${Math.min((attempt.warmup ?? 0) / Math.max(until - from, 1e-6), 1) * 100}%` }}></em><span>${attempt.attempt}</span></span>`;
    })}
    ${checkpoints.map((c) => html`<span key=${`c${c.id}`} class="mark" title=${c.name} style=${{ left: place(c.timestamp) }}></span>`)}
  </div><p class="axis muted"><span>start</span><span>${duration(span)}</span></p></div>`;
}

// One line a trial through the values of its parameters; the colour is the score.
export function ParallelCoordinates({ trials, axes, mode, onPick }) {
  const canvas = useRef(null), hover = useRef(null);
  const theme = useThemeVersion();
  const [picked, setPicked] = useState(null);
  const scales = axes.map((axis) => scaleOf(trials.map((t) => axis.value(t))));
  const layout = useRef(null);
  useEffect(() => {
    const node = canvas.current;
    if (!node) return;
    const width = node.clientWidth || 600, height = 260, ratio = devicePixelRatio || 1;
    node.width = width * ratio;
    node.height = height * ratio;
    const draw = node.getContext("2d");
    draw.scale(ratio, ratio);
    const left = 40, right = width - 40, top = 30, bottom = height - 26;
    const x = (i) => (axes.length === 1 ? width / 2 : left + ((right - left) * i) / (axes.length - 1));
    const y = (i, value) => bottom - (bottom - top) * scales[i].place(value);
    const scores = trials.map((t) => t.score).filter((v) => v !== null);
    const low = Math.min(...scores), high = Math.max(...scores);
    const good = (t) => (t.score === null || high === low ? 0.5 : ((t.score - low) / (high - low)) * (mode === "max" ? 1 : -1) + (mode === "max" ? 0 : 1));
    const drawn = trials.filter((t) => axes.every((axis, i) => scales[i].place(axis.value(t)) !== null));
    drawn.sort((a, b) => good(a) - good(b));
    layout.current = { drawn, x, y };
    const best = cssColour("--accent"), better = cssColour("--line-2"), other = cssColour("--faint");
    for (const trial of drawn) {
      const share = good(trial);
      draw.strokeStyle = share > 0.9 ? best : share > 0.5 ? better : other;
      draw.globalAlpha = picked && picked.id !== trial.id ? 0.12 : drawn.length > 500 ? 0.25 : 0.65;
      draw.lineWidth = picked && picked.id === trial.id ? 2.5 : share > 0.9 ? 1.6 : 1;
      draw.beginPath();
      axes.forEach((axis, i) => (i ? draw.lineTo(x(i), y(i, axis.value(trial))) : draw.moveTo(x(i), y(i, axis.value(trial)))));
      draw.stroke();
    }
    draw.globalAlpha = 1;
    draw.font = "11px " + cssColour("--font");
    draw.textAlign = "center";
    axes.forEach((axis, i) => {
      draw.strokeStyle = cssColour("--line");
      draw.lineWidth = 1;
      draw.beginPath();
      draw.moveTo(x(i), top);
      draw.lineTo(x(i), bottom);
      draw.stroke();
      draw.fillStyle = cssColour("--ink");
      draw.fillText(short(axis.label, 18), x(i), 14);
      draw.fillStyle = cssColour("--muted");
      scales[i].ends.forEach((text, end) => draw.fillText(short(text, 14), x(i), end ? top - 4 : bottom + 14));
    });
  }, [trials, axes, theme, picked]);
  const find = (event) => {
    const box = canvas.current.getBoundingClientRect(), found = layout.current;
    if (!found?.drawn.length) return null;
    const px = event.clientX - box.left, py = event.clientY - box.top;
    let best = null, distance = 14;
    for (const trial of found.drawn) {
      axes.forEach((axis, i) => {
        if (Math.abs(found.x(i) - px) > 30) return;
        const d = Math.abs(found.y(i, axis.value(trial)) - py);
        if (d < distance) { distance = d; best = trial; }
      });
    }
    return best;
  };
  return html`<div><canvas ref=${canvas} class="wide-canvas" role="img"
    aria-label=${`Parallel coordinates of ${trials.length} trials over ${axes.map((a) => a.label).join(", ")}; the table below has the same values`}
    onMouseMove=${(e) => setPicked(find(e))} onMouseLeave=${() => setPicked(null)} onClick=${(e) => { const t = find(e); if (t) onPick(t); }}></canvas>
    <p class="muted" aria-hidden="true">${picked ? `trial ${picked.trial_id}: ${axes.map((a) => `${a.label} ${number(a.value(picked))}`).join(", ")}` : "Point at an axis to see a trial; a click opens it."}</p></div>`;
}

const short = (text, length) => (text.length > length ? `${text.slice(0, length - 1)}…` : text);

function scaleOf(values) {
  const known = values.filter((v) => v !== null && v !== undefined);
  if (known.length && known.every((v) => typeof v === "number")) {
    let low = Infinity, high = -Infinity;
    for (const v of known) { low = Math.min(low, v); high = Math.max(high, v); }
    const log = low > 0 && high / low > 50;
    const map = log ? Math.log : (v) => v;
    const span = map(high) - map(low) || 1;
    return { place: (v) => (typeof v === "number" ? (map(v) - map(low)) / span : null), ends: [number(low), number(high)], log };
  }
  const names = [...new Set(known.map(String))].sort();
  return {
    place: (v) => (v === null || v === undefined ? null : names.length < 2 ? 0.5 : names.indexOf(String(v)) / (names.length - 1)),
    ends: names.length ? [names[0], names[names.length - 1]] : ["", ""],
  };
}
