// One run: its charts, what happened, what it left.
import { html, useEffect, useMemo, useState, usePreference, Copy, Empty, Facts, Spent, bytes, date, duration, number, get } from "../lib.js";
import { Chart, LateRanks, TimeLine } from "../charts.js";
import { RunHead, metricOf, useRun } from "./parts.js";

export function Run({ id }) {
  const data = useRun(id);
  const [byTime, setByTime] = usePreference("chart.time", false);
  const [weight, setWeight] = usePreference("chart.smooth", 0);
  const [log, setLog] = usePreference("chart.log", false);
  const [ranks, setRanks] = useState(false);
  const [filter, setFilter] = useState("");
  const { run, details, lines } = data;
  useEffect(() => { document.title = run ? `${run.experiment} · lockstep` : "lockstep"; }, [run?.experiment]);
  if (data.missing) return html`<${Empty} page title="There is no such run">It may have been deleted, or the dashboard was started for another directory. <a href="#/">All runs</a><//>`;
  if (!run) return html`<p class="empty" role="status">Reading the run…</p>`;
  const names = Object.keys(lines).filter((n) => /^(report|log|data):/.test(n) && metricOf(n).toLowerCase().includes(filter.toLowerCase()));
  const many = run.workers > 1;
  return html`<${RunHead} id=${id} run=${run} details=${details} tab="run" />
    <section aria-labelledby="charts"><div class="bar"><h2 id="charts">Metrics</h2>
      <div class="segments" role="group" aria-label="Horizontal axis"><button type="button" aria-pressed=${!byTime} onClick=${() => setByTime(false)}>Step</button><button type="button" aria-pressed=${byTime} onClick=${() => setByTime(true)}>Time</button></div>
      <label class="choice">Smooth <input type="range" min="0" max="0.98" step="0.02" value=${weight} onInput=${(e) => setWeight(Number(e.target.value))} /></label>
      <label class="choice"><input type="checkbox" checked=${log} onChange=${(e) => setLog(e.target.checked)} /> Log scale</label>
      ${many && html`<label class="choice"><input type="checkbox" checked=${ranks} onChange=${(e) => setRanks(e.target.checked)} /> All ranks</label>`}
      ${Object.keys(lines).length > 6 && html`<input type="search" placeholder="Filter metrics ( / )" aria-label="Filter metrics" value=${filter} onInput=${(e) => setFilter(e.target.value)} />`}
    </div>
    ${names.length ? html`<div class="charts">${names.map((name) => html`<${MetricChart} key=${name} id=${id} name=${name} line=${lines[name]} before=${lines[name.replace("report:", "parent:")]} parent=${details?.parent} ...${{ byTime, weight, log, ranks }} reports=${run.reports} />`)}</div>`
      : html`<p class="empty">${run.reports ? "No metric fits the filter." : "Nothing was reported yet. A metric appears with the first train.report()."}</p>`}</section>
    ${details && html`<${Records} id=${id} data=${data} />`}`;
}

function MetricChart({ id, name, line, before, parent, byTime, weight, log, ranks, reports }) {
  const [range, setRange] = useState(null);
  const [detail, setDetail] = useState(null);
  const kind = name.slice(0, name.indexOf(":"));
  const wantRanks = ranks && kind !== "data";
  useEffect(() => { setRange(null); }, [byTime]);
  useEffect(() => {
    if (!range && !wantRanks) { setDetail(null); return; }
    let gone = false;
    const values = { id, name, axis: byTime ? "time" : "step", ...(range ? { low: range[0], high: range[1] } : {}), ...(wantRanks ? { ranks: 1 } : {}) };
    get("/api/series", values).then((r) => r.json()).then((found) => { if (!gone) setDetail(found.lines); }).catch(() => { if (!gone) setDetail(null); });
    return () => { gone = true; };
  }, [range, wantRanks, byTime, wantRanks || range ? reports : 0]);
  const shown = useMemo(() => {
    const own = (detail ?? [{ rank: -1, ...line }]).map((l) => ({
      label: l.rank < 0 ? metricOf(name) : `rank ${l.rank}`, x: byTime ? l.times : l.steps, y: l.values,
    }));
    // A fork's chart begins with its parent's points, up to where the two part.
    return before && kind === "report" && !range ? [...own, { label: `parent, until ${parent?.step}`, x: byTime ? before.times : before.steps, y: before.values, colour: own.length }] : own;
  }, [detail, line, before, range, byTime]);
  const usable = shown.length ? shown : [{ label: metricOf(name), x: [], y: [] }];
  return html`<${Chart} title=${metricOf(name)} sub=${kind === "log" ? "train.log" : kind === "data" ? "share of time" : ""} lines=${usable} byTime=${byTime} whole=${!byTime} log=${log} weight=${weight} range=${range} onZoom=${setRange} />`;
}

function Records({ id, data }) {
  const { run, details, environment, late } = data;
  const running = run.state === "running";
  return html`
    <section class="columns"><div>
      <div class="card"><h2>Attempts and failures</h2>
        ${details.attempts.length ? html`<${TimeLine} attempts=${details.attempts} failures=${details.failures} stops=${details.stops} checkpoints=${details.checkpoints} started=${run.started} ended=${run.ended ?? run.updated} running=${running} />` : html`<p class="muted">The workers are not up yet.</p>`}
        ${details.failure_count > details.failures.length && html`<p class="muted">${number(details.failure_count)} failures; the last ${details.failures.length} are shown.</p>`}
        ${details.failures.map((f, i) => html`<details key=${i} open=${i === details.failures.length - 1}><summary><span class="bad-text">Attempt ${f.attempt} failed</span> ${date(f.time)}${f.retry ? ", retried" : ""}</summary>
          <p>${f.message}</p>${f.errors.map((e) => html`<div class="trace" key=${e.rank}><h3>Rank ${e.rank}</h3><pre tabindex="0">${e.text}</pre></div>`)}</details>`)}
        ${details.stops.map((s, i) => html`<p key=${`s${i}`} class="muted">Attempt ${s.attempt} stopped for a ${s.kind} at ${date(s.time)}${s.next_size ? `; the next one has ${s.next_size} workers` : ""}.</p>`)}
      </div>
      ${late.length > 0 && html`<div class="card"><h2>Who is late</h2><${LateRanks} columns=${late} /></div>`}
      <div class="card"><h2>Checkpoints</h2><${Checkpoints} id=${id} details=${details} running=${running} /></div>
      </div><div>
      <div class="card"><h2>Where the time went</h2><${Spent} spent=${run.spent} wide=${true} /></div>
      <div class="card"><h2>Config</h2><pre class="json" tabindex="0">${JSON.stringify(details.config, null, 2)}</pre></div>
      <div class="card"><h2>Environment</h2>
        ${environment ? html`<${Facts} facts=${environment.facts} />${environment.diff && html`<details><summary>Changes that were not committed</summary><pre class="diff" tabindex="0">${environment.diff.split("\n").map((l, i) => html`<span key=${i} class=${`line ${l.startsWith("+") ? "plus" : l.startsWith("-") ? "minus" : ""}`}>${l}</span>`)}</pre></details>`}`
          : html`<p class="muted">Not recorded.</p>`}
        <p class="path"><code>${run.path}</code> <${Copy} text=${run.path} label="Copy path" /></p></div>
    </div></section>`;
}

function Checkpoints({ id, details, running }) {
  const rows = [...details.checkpoints].reverse();
  const scored = details.score?.checkpoint_score_attribute;
  if (!rows.length) return html`<p class="muted">None${details.deleted ? ` left; ${number(details.deleted)} were deleted` : running ? " yet" : ""}.</p>`;
  const more = details.saved - details.deleted - Math.min(rows.length, 200);
  return html`<div class="scroll-x" tabindex="0" role="region" aria-label="Table of checkpoints"><table><thead><tr><th scope="col">Name</th><th scope="col" class="num">Report</th><th scope="col" class="num">${scored ?? "Score"}</th><th scope="col">Saved</th><th scope="col">Files</th><th scope="col"><span class="offscreen">Path</span></th></tr></thead>
    <tbody>${rows.slice(0, 200).map((c) => html`<tr key=${c.id}><td><code>${c.name}</code></td><td class="num">${number(c.index)}</td><td class="num">${number(c.score)}</td><td>${date(c.timestamp)}</td><td><${Files} id=${id} checkpoint=${c} /></td><td><${Copy} text=${c.path} label="Copy path" /></td></tr>`)}</tbody></table></div>
    ${details.deleted > 0 && html`<p class="muted">${number(details.deleted)} older ones were deleted.</p>`}${more > 0 && html`<p class="muted">And ${number(more)} older ones.</p>`}`;
}

function Files({ id, checkpoint }) {
  const [files, setFiles] = useState(null);
  if (!checkpoint.uploaded) return html`<span class="muted">not uploaded</span>`;
  const show = async () => {
    try { setFiles((await (await get("/api/checkpoint", { id, checkpoint: checkpoint.id })).json()).files); } catch { setFiles([]); }
  };
  if (!files) return html`<button type="button" class="quiet" onClick=${show}>Show</button>`;
  if (!files.length) return html`<span class="muted">gone</span>`;
  return html`<ul class="files">${files.slice(0, 20).map((f) => html`<li key=${f.name}><code>${f.name}</code> ${bytes(f.size)}</li>`)}${files.length > 20 && html`<li>and ${files.length - 20} more</li>`}</ul>`;
}
