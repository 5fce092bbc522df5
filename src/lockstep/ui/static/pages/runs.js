// All runs and experiments: a table first.
import { html, useEffect, useMemo, useRef, useState, useEvents, usePreference, useSpacing, State, Spent, Empty, age, duration, number, plural, to } from "../lib.js";
import { Sparkline } from "../charts.js";
import { Table, compare } from "../table.js";

const RUNNING = new Set(["running", "starting"]);
const BAD = new Set(["failed", "damaged"]);

export function Runs() {
  const [rows, setRows] = useState(new Map());
  const [complete, setComplete] = useState(false);
  const [text, setText] = useState("");
  const [only, setOnly] = useState("all");
  const [sort, setSort] = usePreference("runs.sort", { key: "age", down: true });
  const [grouped, setGrouped] = usePreference("runs.grouped", false);
  const [metric, setMetric] = useState("");
  const [chosen, setChosen] = useState(new Set());
  const pending = useRef(new Map());
  const draw = useSpacing(pending.current.size > 2000 ? 1000 : 200);
  useEffect(() => { document.title = "Runs · lockstep"; }, []);
  useEvents(`view=runs${metric ? `&metric=${encodeURIComponent(metric)}` : ""}`, (message) => {
    if (message.type === "open") { pending.current = new Map(); return; }
    if (message.type !== "runs") return;
    const next = pending.current;
    for (const row of message.rows) next.set(row.id, row);
    for (const id of message.gone) next.delete(id);
    draw(() => {
      setRows(new Map(pending.current));
      setComplete(message.complete);
    });
  }, [metric]);
  const all = [...rows.values()];
  const metrics = useMemo(() => [...new Set(all.flatMap((r) => Object.keys(r.metrics ?? {})))].sort().slice(0, 300), [rows]);
  const wanted = text.toLowerCase().split(/\s+/).filter(Boolean);
  const keys = {
    age: (r) => r.started, name: (r) => `${r.experiment} ${r.name}`, state: (r) => r.state, reports: (r) => r.reports,
    workers: (r) => r.workers ?? null, attempts: (r) => r.attempts ?? null, best: (r) => r.best?.value ?? null,
  };
  const shown = all.filter((r) => (only === "all" || (only === "running" ? RUNNING.has(r.state) : BAD.has(r.state) || r.trials?.ERROR))
    && wanted.every((w) => `${r.experiment} ${r.name} ${r.state} ${r.diagnosis ?? ""}`.toLowerCase().includes(w)));
  shown.sort(compare(keys[sort.key] ?? keys.age, sort.down));
  const lines = grouped ? group(shown) : shown;
  const toggle = (row) => {
    if (row.kind !== "run") return;
    const next = new Set(chosen);
    if (!next.delete(row.id)) next.add(row.id);
    setChosen(next);
  };
  const open = (row) => { location.hash = row.kind === "experiment" ? to.experiment(row.id) : to.run(row.id); };
  useEffect(() => {
    const key = (event) => {
      if (event.key === "c" && chosen.size > 1 && !event.target.closest("input,select,textarea") && !event.ctrlKey && !event.metaKey) location.hash = to.compare([...chosen]);
    };
    addEventListener("keydown", key);
    return () => removeEventListener("keydown", key);
  }, [chosen]);
  const counts = { all: all.length, running: all.filter((r) => RUNNING.has(r.state)).length, failed: all.filter((r) => BAD.has(r.state) || r.trials?.ERROR).length };
  const columns = [
    { key: "choose", label: "Select", hidden: true, class: "choose", cell: (r) => r.kind === "run" && html`<input type="checkbox" checked=${chosen.has(r.id)} onChange=${() => toggle(r)} aria-label=${`Select ${r.name}`} />` },
    { key: "state", label: "State", sort: true, cell: (r) => html`<${State} state=${r.state} />` },
    { key: "name", label: "Name", sort: true, class: "name", cell: (r) => html`<a class="run-name" href=${r.kind === "experiment" ? to.experiment(r.id) : to.run(r.id)}>${r.experiment || r.name}</a>
        <span class="second">${r.diagnosis ? html`<span class="diagnosis" title=${r.diagnosis}>${r.diagnosis}</span>` : r.kind === "experiment" ? trials(r) : html`<span title=${r.note ?? ""}>${r.name}${r.note ? `: ${r.note}` : ""}</span>`}</span>` },
    { key: "age", label: "Age", sort: true, class: "num off-phone", cell: (r) => html`${age(r.started)}<span class="second">${r.ended && r.started ? `took ${duration(r.ended - r.started)}` : ""}</span>` },
    { key: "spark", label: "Trend", class: "wide", cell: (r) => r.spark ? html`<${Sparkline} values=${r.spark.values} label=${`trend of ${r.spark.metric}`} /><span class="second">${r.spark.metric}</span>` : html`<span class="muted">–</span>` },
    { key: "best", label: "Best", sort: true, class: "num best", cell: (r) => r.best ? html`<b>${number(r.best.value)}</b><span class="second">${r.best.metric}${r.best.report ? `, report ${number(r.best.report)}` : ""}</span>` : html`<span class="muted">–</span>` },
    { key: "reports", label: "Reports", sort: true, class: "num wide", cell: (r) => number(r.reports) },
    { key: "workers", label: "Workers", sort: true, class: "num wide", cell: (r) => r.kind === "run" ? number(r.workers) : "" },
    { key: "attempts", label: "Attempts", sort: true, class: "num wide", cell: (r) => r.kind === "run" ? html`<span class=${r.attempts > 1 ? "warn-text" : ""}>${number(r.attempts)}</span>` : "" },
    { key: "spent", label: "Where the time went", class: "wide", cell: (r) => r.kind === "run" ? html`<${Spent} spent=${r.spent} />` : "" },
  ];
  return html`
    <div class="bar"><h1>Runs</h1>
      <div class="segments" role="group" aria-label="Which runs">${["all", "running", "failed"].map((name) => html`<button key=${name} type="button" aria-pressed=${only === name} onClick=${() => setOnly(name)}>${name[0].toUpperCase() + name.slice(1)} <span class="count">${counts[name]}</span></button>`)}</div>
      <input type="search" placeholder="Filter ( / )" aria-label="Filter" value=${text} onInput=${(e) => setText(e.target.value)} onKeyDown=${(e) => e.key === "Escape" && e.target.blur()} />
      <label class="choice">Trend of <select value=${metric} onChange=${(e) => { setMetric(e.target.value); }}><option value="">each run's own</option>${metrics.map((m) => html`<option key=${m} value=${m}>${m}</option>`)}</select></label>
      <label class="choice"><input type="checkbox" checked=${grouped} onChange=${(e) => setGrouped(e.target.checked)} /> Group</label>
      <span class="grow"></span>
      ${chosen.size > 0 && html`<a class=${chosen.size > 1 ? "button primary" : "button"} href=${chosen.size > 1 ? to.compare([...chosen]) : undefined} aria-disabled=${chosen.size < 2}>Compare ${chosen.size} ${chosen.size === 1 ? "run: select another" : "runs"}</a>`}
    </div>
    ${shown.length ? html`<${Table} label="Table of runs" columns=${columns} rows=${lines} height=${56} sort=${sort} onOpen=${open} onToggle=${toggle}
        onSort=${(key) => setSort({ key, down: sort.key === key ? !sort.down : key !== "name" && key !== "state" })}
        rowClass=${(r) => (chosen.has(r.id) ? "chosen" : "")} />`
      : all.length ? html`<${Empty} title="No run fits">Change the filter, or <button type="button" class="quiet" onClick=${() => { setText(""); setOnly("all"); }}>show all ${all.length}</button>.<//>`
      : complete ? html`<${Empty} title="No run yet">A run appears here as soon as its <code>fit()</code> has started. Directories other than the results root: <code>lockstep ui PATH</code>.<//>`
      : html`<p class="empty" role="status">Looking for runs…</p>`}`;
}

function trials(row) {
  const total = Object.values(row.trials).reduce((a, b) => a + b, 0);
  const parts = Object.entries(row.trials).map(([status, count]) => `${number(count)} ${status.toLowerCase()}`);
  return html`<span>${plural(total, "trial")}: ${parts.join(", ") || "none yet"}</span>`;
}

function group(rows) {
  const groups = new Map();
  for (const row of rows) {
    const name = row.experiment || row.name;
    if (!groups.has(name)) groups.set(name, []);
    groups.get(name).push(row);
  }
  return [...groups].flatMap(([name, of]) => (of.length === 1 && of[0].kind === "experiment" ? of : [{ group: name, label: html`${name} <span class="count">${of.length}</span>` }, ...of]));
}
