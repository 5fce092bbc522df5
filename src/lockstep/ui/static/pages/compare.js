// Several runs or trials over each other.
import { html, useEffect, useMemo, useRef, useState, useEvents, usePreference, State, Empty, duration, number, to, colour } from "../lib.js";
import { Chart } from "../charts.js";
import { metricOf } from "./parts.js";

export function Compare({ ids }) {
  const [runs, setRuns] = useState(new Map());
  const [byTime, setByTime] = usePreference("compare.time", false);
  const [weight, setWeight] = usePreference("chart.smooth", 0);
  const [log, setLog] = usePreference("chart.log", false);
  const collected = useRef(new Map());
  useEffect(() => { document.title = "Compare · lockstep"; }, []);
  useEvents(`view=compare&${ids.map((id) => `id=${encodeURIComponent(id)}`).join("&")}`, (message) => {
    if (message.type === "open") { collected.current = new Map(); return; }
    const next = collected.current;
    if (message.type === "run") {
      const old = next.get(message.run.id) ?? { lines: {} };
      next.set(message.run.id, { ...old, run: message.run, config: message.config ?? old.config, environment: message.environment ?? old.environment });
    } else if (message.type === "lines") {
      const old = next.get(message.id);
      const lines = { ...old.lines };
      for (const [name, line] of Object.entries(message.lines)) {
        const had = lines[name];
        lines[name] = line.add && had ? { steps: had.steps.concat(line.steps), times: had.times.concat(line.times), values: had.values.concat(line.values) } : line;
      }
      next.set(message.id, { ...old, lines });
    }
    setRuns(new Map(next));
  }, [ids.join(" ")]);
  const all = ids.map((id) => runs.get(id)).filter(Boolean);
  if (ids.length < 2) return html`<${Empty} page title="Nothing to compare">Select two or more <a href=${to.runs()}>runs</a> or trials.<//>`;
  if (!all.length) return html`<p class="empty" role="status">Reading the runs…</p>`;
  const names = all.map(({ run }, i) => (all.filter((o) => o.run.experiment === run.experiment).length > 1 ? `${run.experiment} ${run.name.split("_").slice(-2).join("_")}` : run.experiment || run.name));
  const metrics = [...new Set(all.flatMap((r) => Object.keys(r.lines)))];
  const differ = (pick) => {
    const keys = [...new Set(all.flatMap((r) => Object.keys(pick(r) ?? {})))];
    return keys.map((key) => [key, all.map((r) => pick(r)?.[key])]).filter(([, values]) => new Set(values.map((v) => JSON.stringify(v) ?? "")).size > 1);
  };
  const config = differ((r) => r.config);
  const facts = (r) => Object.fromEntries((r.environment?.facts ?? []).filter(([label]) => label !== "started" && label !== "command"));
  const environment = differ(facts);
  const last = [...new Set(all.flatMap((r) => Object.keys(r.run.metrics)))].map((key) => [key, all.map((r) => r.run.metrics[key])]);
  return html`<nav class="crumbs" aria-label="Where you are"><a href=${to.runs()}>Runs</a> <span aria-hidden="true">/</span> Compare</nav>
    <div class="bar head"><h1>Compare ${all.length} runs</h1></div>
    <section class="scroll-x" tabindex="0" role="region" aria-label="Differences"><table class="differences">
      <thead><tr><th scope="col"><span class="offscreen">Value</span></th>${all.map(({ run }, i) => html`<th key=${run.id} scope="col"><i class=${`dot c${(i % 8) + 1}`}></i><a href=${to.run(run.id)}>${names[i]}</a></th>`)}</tr></thead>
      <tbody>
        <tr><th scope="row">state</th>${all.map(({ run }) => html`<td key=${run.id}><${State} state=${run.state} /></td>`)}</tr>
        <${Rows} title="Config that differs" rows=${config} none="The configs are equal." span=${all.length + 1} />
        <${Rows} title="Last metrics" rows=${last} none="Nothing was reported." span=${all.length + 1} />
        <${Rows} title="The runs" rows=${[["best", all.map((r) => (r.run.best ? `${number(r.run.best.value)} (${r.run.best.metric})` : null))], ["reports", all.map((r) => r.run.reports)], ["workers", all.map((r) => r.run.workers)], ["attempts", all.map((r) => r.run.attempts)]]} span=${all.length + 1} />
        <${Rows} title="Environment that differs" rows=${environment} none="The environments are equal." span=${all.length + 1} />
      </tbody></table></section>
    <section aria-labelledby="charts"><div class="bar"><h2 id="charts">Metrics</h2>
      <div class="segments" role="group" aria-label="Horizontal axis"><button type="button" aria-pressed=${!byTime} onClick=${() => setByTime(false)}>Step</button><button type="button" aria-pressed=${byTime} onClick=${() => setByTime(true)}>Seconds</button></div>
      <label class="choice">Smooth <input type="range" min="0" max="0.98" step="0.02" value=${weight} onInput=${(e) => setWeight(Number(e.target.value))} /></label>
      <label class="choice"><input type="checkbox" checked=${log} onChange=${(e) => setLog(e.target.checked)} /> Log scale</label></div>
    <div class="charts">${metrics.map((name) => html`<${Overlay} key=${name} name=${name} all=${all} names=${names} ...${{ byTime, weight, log }} />`)}</div></section>`;
}

function Rows({ title, rows, none, span }) {
  if (!rows.length) return none ? html`<tr class="group"><th colspan=${span} scope="rowgroup">${title}: <span class="muted">${none}</span></th></tr>` : null;
  return html`<tr class="group"><th colspan=${span} scope="rowgroup">${title}</th></tr>
    ${rows.map(([key, values]) => html`<tr key=${key}><th scope="row">${key}</th>${values.map((v, i) => html`<td key=${i}>${v === undefined ? html`<span class="muted">–</span>` : typeof v === "object" && v !== null ? JSON.stringify(v) : number(v)}</td>`)}</tr>`)}`;
}

function Overlay({ name, all, names, byTime, weight, log }) {
  const lines = useMemo(() => all.map(({ run, lines: own }, i) => {
    const line = own[name];
    return { label: names[i], colour: i, x: line ? (byTime ? line.times.map((t) => t - run.started) : line.steps) : [], y: line ? line.values : [] };
  }).filter((line) => line.x.length), [all, byTime, name]);
  return html`<${Chart} title=${metricOf(name)} lines=${lines} whole=${!byTime} weight=${weight} log=${log} height=${230} />`;
}
