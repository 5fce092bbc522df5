// An experiment: its trials, which parameters matter, how the best came about.
import { html, useEffect, useMemo, useRef, useState, useEvents, useSpacing, State, Empty, age, date, duration, number, plural, to } from "../lib.js";
import { Chart, ParallelCoordinates, Sparkline } from "../charts.js";
import { Table, compare } from "../table.js";

export function Experiment({ id }) {
  const [experiment, setExperiment] = useState(null);
  const [trials, setTrials] = useState(new Map());
  const [missing, setMissing] = useState(false);
  const [sort, setSort] = useState({ key: "score", down: null });
  const [text, setText] = useState("");
  const [only, setOnly] = useState("all");
  const [chosen, setChosen] = useState(new Set());
  const collected = useRef(new Map());
  const draw = useSpacing(collected.current.size > 2000 ? 1000 : 300);
  useEvents(`view=experiment&id=${encodeURIComponent(id)}`, (message) => {
    if (message.type === "open") { collected.current = new Map(); return; }
    if (message.type === "missing") { setMissing(true); return; }
    if (message.type !== "experiment") return;
    for (const trial of message.trials) collected.current.set(trial.trial_id, trial);
    draw(() => {
      setMissing(false);
      setExperiment(message.experiment);
      setTrials(new Map(collected.current));
    });
  });
  useEffect(() => { document.title = experiment ? `${experiment.name} · lockstep` : "lockstep"; }, [experiment?.name]);
  const all = useMemo(() => [...trials.values()], [trials]);
  const parameters = useMemo(() => varying(all), [all]);
  const axes = useMemo(() => [
    ...parameters.slice(0, 8).map((name) => ({ label: name, value: (t) => t.config[name] ?? null })),
    ...(experiment?.metric ? [{ label: experiment.metric, value: (t) => t.score }] : []),
  ], [parameters.join("\n"), experiment?.metric]);
  const scored = useMemo(() => all.filter((t) => t.score !== null), [all]);
  if (missing) return html`<${Empty} page title="There is no such experiment"><a href="#/">All runs</a><//>`;
  if (!experiment) return html`<p class="empty" role="status">Reading the experiment…</p>`;
  const down = sort.down ?? (sort.key === "score" ? experiment.mode === "max" : false);
  const keys = {
    index: (t) => t.index, status: (t) => t.status, score: (t) => t.score, reports: (t) => t.reports,
    time: (t) => (t.started ? (t.ended ?? Date.now() / 1000) - t.started : null),
  };
  const value = keys[sort.key] ?? ((t) => t.config[sort.key] ?? null);
  const wanted = text.toLowerCase();
  const shown = all.filter((t) => (only === "all" || (only === "stopped" ? t.by === "scheduler" : t.status === only))
    && (!wanted || `${t.trial_id} ${t.error ?? ""} ${JSON.stringify(t.config)}`.toLowerCase().includes(wanted))).sort(compare(value, down));
  const toggle = (t) => { const next = new Set(chosen); if (!next.delete(t.id)) next.add(t.id); setChosen(next); };
  const columns = [
    { key: "choose", label: "Select", hidden: true, class: "choose", cell: (t) => html`<input type="checkbox" checked=${chosen.has(t.id)} onChange=${() => toggle(t)} aria-label=${`Select trial ${t.trial_id}`} />` },
    { key: "index", label: "Trial", sort: true, cell: (t) => html`<a href=${to.run(t.id)}>${t.trial_id}</a>` },
    ...(experiment.metric ? [{ key: "score", label: experiment.metric, sort: true, class: "num", cell: (t) => html`<b class=${t.id === experiment.best_id ? "best-value" : ""}>${number(t.score)}</b>` }] : []),
    { key: "status", label: "Status", sort: true, cell: (t) => html`<${State} state=${t.status} />${t.by === "scheduler" ? html`<span class="second">by the scheduler, report ${number(t.reports)}</span>` : t.error ? html`<span class="second diagnosis" title=${t.error}>${t.error}</span>` : ""}` },
    { key: "spark", label: "Trend", class: "wide", cell: (t) => html`<${Sparkline} values=${t.spark} />` },
    { key: "reports", label: "Reports", sort: true, class: "num", cell: (t) => number(t.reports) },
    { key: "time", label: "Time", sort: true, class: "num", cell: (t) => (t.started ? duration((t.ended ?? Date.now() / 1000) - t.started) : "–") },
    ...parameters.slice(0, 10).map((name) => ({ key: name, label: name, sort: true, class: "num", cell: (t) => number(t.config[name]) })),
  ];
  const total = all.length, planned = experiment.planned > total ? ` of ${number(experiment.planned)}` : "";
  const counts = Object.entries(experiment.trials).map(([status, count]) => `${number(count)} ${status.toLowerCase()}`).join(", ");
  const statuses = ["all", ...Object.keys(experiment.trials), ...(experiment.stopped ? ["stopped"] : [])];
  return html`<nav class="crumbs" aria-label="Where you are"><a href=${to.runs()}>Runs</a> <span aria-hidden="true">/</span> ${experiment.name}</nav>
    <div class="bar head"><h1>${experiment.name}</h1><${State} state=${experiment.state} /></div>
    <p class="under muted">${plural(total, "trial")}${planned}: ${counts} · ${experiment.stopped ? `${number(experiment.stopped)} ended by the scheduler · ` : ""}started ${date(experiment.started)} (${age(experiment.started)} ago)${experiment.best ? html` · best ${experiment.metric} <b>${number(experiment.best.value)}</b> in <a href=${to.run(experiment.best_id)}>trial ${experiment.best.trial}</a>` : ""}</p>
    ${experiment.diagnosis && html`<p class="problem">${experiment.diagnosis}</p>`}
    ${scored.length > 1 && html`<section class="cards">
      <div class="card span2"><h2>History</h2><${History} trials=${all} mode=${experiment.mode} metric=${experiment.metric} /></div>
      <div class="card"><h2>Which parameters matter</h2><${Importance} trials=${scored} parameters=${parameters} /></div>
      ${axes.length > 1 && html`<div class="card span3"><h2>Parallel coordinates</h2><${ParallelCoordinates} trials=${scored} axes=${axes} mode=${experiment.mode} onPick=${(t) => { location.hash = to.run(t.id); }} /></div>`}
    </section>`}
    <section aria-labelledby="trials"><div class="bar"><h2 id="trials">Trials</h2>
      <div class="segments" role="group" aria-label="Which trials">${statuses.map((s) => html`<button key=${s} type="button" aria-pressed=${only === s} onClick=${() => setOnly(s)}>${s === "stopped" ? "By the scheduler" : s[0].toUpperCase() + s.slice(1).toLowerCase()} <span class="count">${s === "all" ? total : s === "stopped" ? experiment.stopped : experiment.trials[s]}</span></button>`)}</div>
      <input type="search" placeholder="Filter ( / )" aria-label="Filter trials" value=${text} onInput=${(e) => setText(e.target.value)} />
      <span class="grow"></span>
      ${chosen.size > 1 && html`<a class="button primary" href=${to.compare([...chosen])}>Compare ${chosen.size} trials</a>`}</div>
    ${shown.length ? html`<${Table} label="Table of trials" columns=${columns} rows=${shown} height=${44} sort=${{ key: sort.key, down }} onOpen=${(t) => { location.hash = to.run(t.id); }} onToggle=${toggle}
      onSort=${(key) => setSort({ key, down: sort.key === key ? !down : null })} rowClass=${(t) => (chosen.has(t.id) ? "chosen" : "")} />`
      : html`<p class="empty">${total ? "No trial fits." : "No trial yet."}</p>`}</section>`;
}

function varying(trials) {
  const seen = new Map();
  for (const t of trials) for (const [key, value] of Object.entries(t.config)) {
    if (!seen.has(key)) seen.set(key, new Set());
    const values = seen.get(key);
    if (values.size < 2) values.add(JSON.stringify(value));
  }
  return [...seen].filter(([, values]) => values.size > 1).map(([key]) => key);
}

function History({ trials, mode, metric }) {
  const lines = useMemo(() => {
    const done = trials.filter((t) => t.score !== null).sort((a, b) => (a.ended ?? a.started ?? 0) - (b.ended ?? b.started ?? 0) || a.index - b.index);
    let best = null;
    const x = done.map((_, i) => i + 1);
    const so = done.map((t) => (best = best === null ? t.score : mode === "max" ? Math.max(best, t.score) : Math.min(best, t.score)));
    return [{ label: "each trial", dots: true, x, y: done.map((t) => t.score) }, { label: "best so far", x, y: so }];
  }, [trials, mode]);
  return html`<${Chart} title=${`${metric} by trial, in the order they ended`} lines=${lines} whole=${true} height=${210} />`;
}

// How much of the variance of the score the values of one parameter explain, in up to eight groups.
function Importance({ trials, parameters }) {
  const rows = useMemo(() => parameters.map((name) => [name, explained(trials, name)]).filter(([, share]) => share !== null).sort((a, b) => b[1] - a[1]).slice(0, 12), [trials, parameters.join("\n")]);
  if (trials.length < 8) return html`<p class="muted">Needs eight trials with a score.</p>`;
  if (!rows.length) return html`<p class="muted">No parameter differs between the trials.</p>`;
  return html`<ul class="bars">${rows.map(([name, share]) => html`<li key=${name}><span>${name}</span><span class="track"><i style=${{ width: `${Math.round(share * 100)}%` }}></i></span><b>${Math.round(share * 100)} %</b></li>`)}</ul>
    <p class="muted small">Share of the score's variance that each parameter explains alone.</p>`;
}

function explained(trials, name) {
  const known = trials.filter((t) => t.config[name] !== undefined && t.config[name] !== null);
  if (known.length < 8) return null;
  const numeric = known.every((t) => typeof t.config[name] === "number");
  const distinct = new Set(known.map((t) => JSON.stringify(t.config[name])));
  if (distinct.size < 2) return null;
  const groups = new Map();
  const count = Math.max(2, Math.min(8, Math.floor(known.length / 4)));
  const order = [...known].sort((a, b) => (numeric ? a.config[name] - b.config[name] : 0));
  order.forEach((t, i) => {
    const key = numeric && distinct.size > count ? Math.floor((i * count) / order.length) : JSON.stringify(t.config[name]);
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(t.score);
  });
  const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;
  const scores = known.map((t) => t.score), middle = mean(scores);
  const total = scores.reduce((sum, v) => sum + (v - middle) ** 2, 0);
  if (!total) return 0;
  const between = [...groups.values()].reduce((sum, g) => sum + g.length * (mean(g) - middle) ** 2, 0);
  // Without what as many groups of random values would explain.
  const chance = (groups.size - 1) / (known.length - 1);
  return Math.max(0, (between / total - chance) / (1 - chance));
}
