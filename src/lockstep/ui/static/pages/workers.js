// The workers of a run: what they print, what they use, where they are.
import { html, useEffect, useMemo, useRef, useState, useEvents, Empty, bytes, number, plural, get } from "../lib.js";
import { Chart } from "../charts.js";
import { RunHead, useRun } from "./parts.js";

const MOST = 3000;

export function Workers({ id }) {
  const data = useRun(id);
  const { run, details, lines } = data;
  useEffect(() => { document.title = run ? `${run.experiment} workers · lockstep` : "lockstep"; }, [run?.experiment]);
  if (data.missing) return html`<${Empty} page title="There is no such run"><a href="#/">All runs</a><//>`;
  if (!run) return html`<p class="empty" role="status">Reading the run…</p>`;
  const attempt = details?.attempts[details.attempts.length - 1];
  return html`<${RunHead} id=${id} run=${run} details=${details} tab="workers" />
    ${attempt && html`<p class="under muted">${attempt.workers.slice(0, 16).map((w) => `rank ${w.rank}: pid ${w.pid} on ${w.hostname}`).join(" · ")}${attempt.workers.length > 16 ? ` · and ${attempt.workers.length - 16} more` : ""}</p>`}
    <${Usage} lines=${lines} run=${run} />
    <${Stacks} id=${id} running=${run.state === "running"} />
    <${Logs} id=${id} />`;
}

const percent = (v) => (v === null ? "–" : `${v < 10 ? Math.round(v * 10) / 10 : Math.round(v)} %`);
const KINDS = [["memory", "Memory of each rank", bytes], ["cpu", "CPU of each rank, of one core", percent], ["gpu", "GPUs, busy", percent], ["gpu_memory", "Memory of the GPUs", bytes]];

function Usage({ lines, run }) {
  const running = run.state === "running", young = running && Date.now() / 1000 - run.started < 15;
  const hosts = new Set(Object.keys(lines).filter((n) => n.startsWith("gpu")).map((n) => machineOf(n)));
  const charts = KINDS.map(([kind, title, format]) => ({
    kind, title, format,
    lines: Object.keys(lines).filter((n) => n.startsWith(`${kind}:`)).map((n) => ({ label: labelled(n, hosts), x: lines[n].times, y: lines[n].values })),
  })).filter((c) => c.lines.length);
  const sampled = charts.find((c) => c.kind === "memory")?.lines.filter((l) => l.x.length).length ?? 0;
  return html`<section aria-labelledby="usage"><h2 id="usage">Resources</h2>
    ${charts.length ? html`<div class="charts">${charts.map((c) => html`<${Chart} key=${c.kind} title=${c.title} lines=${c.lines} byTime=${true} fromZero=${true} format=${c.format} />`)}</div>`
      : html`<p class="muted">${young ? "The first sample comes a second after the workers have started, then one every five seconds."
        : running ? "There are no samples yet. They are taken while all ranks are running." : "There are no samples: the run was shorter than a second."}</p>`}
    ${run.workers > 64 && sampled > 0 && html`<p class="muted">The first ${sampled} ranks of ${run.workers}.</p>`}</section>`;
}

// Lines are called memory:RANK, cpu:RANK, gpu:MACHINE:INDEX, gpu_memory:MACHINE:INDEX.
const machineOf = (name) => name.slice(name.indexOf(":") + 1, name.lastIndexOf(":"));
const labelled = (name, hosts) => {
  const last = name.slice(name.lastIndexOf(":") + 1);
  if (!name.startsWith("gpu")) return `rank ${last}`;
  return hosts.size > 1 ? `${machineOf(name)} GPU ${last}` : `GPU ${last}`;
};

function Stacks({ id, running }) {
  const [state, setState] = useState({ asking: false, found: null });
  const ask = async () => {
    setState({ asking: true, found: state.found });
    try {
      const response = await fetch(`/api/stacks?${new URLSearchParams({ id })}`, { method: "POST" });
      setState({ asking: false, found: await response.json(), when: new Date() });
    } catch (error) { setState({ asking: false, found: { error: error.message } }); }
  };
  const found = state.found;
  return html`<section aria-labelledby="stacks"><div class="bar"><h2 id="stacks">Stacks</h2>
      <button type="button" class="primary" onClick=${ask} disabled=${state.asking}>${state.asking ? "Asking…" : "Stacks now"}</button>
      ${state.when && html`<span class="muted">of ${state.when.toLocaleTimeString("sv-SE")}</span>`}</div>
    <div role="status">${found?.error && html`<p class="note">${found.error}</p>`}
    ${found?.groups?.map((g, i) => html`<details key=${i} open=${i < 2}><summary>${g.title} <span class="muted">pid ${g.pids.join(", ")}</span></summary><pre tabindex="0">${g.lines.join("\n")}</pre></details>`)}
    ${found?.problems && Object.entries(found.problems).map(([rank, text]) => html`<p class="note" key=${rank}>Rank ${rank}: ${text}</p>`)}
    ${!found && html`<p class="muted">${running ? "Where every rank is at this moment; equal stacks are one, the odd one is first." : "Only of a run that is running on this machine."}</p>`}</div></section>`;
}

function Logs({ id }) {
  const [logs, setLogs] = useState(new Map());
  const [rank, setRank] = useState(null);
  const [text, setText] = useState("");
  const [found, setFound] = useState(null);
  const [follow, setFollow] = useState(true);
  const box = useRef(null), collected = useRef(new Map());
  useEvents(`view=logs&id=${encodeURIComponent(id)}`, (message) => {
    if (message.type === "open") { collected.current = new Map(); return; }
    if (message.type !== "logs") return;
    const old = collected.current.get(message.rank) ?? { from: 0, lines: [] };
    const lines = old.lines.concat(message.lines);
    const cut = Math.max(lines.length - MOST, 0);
    collected.current.set(message.rank, { from: old.from + cut, lines: lines.slice(cut), unended: message.unended });
    setLogs(new Map(collected.current));
  });
  const ranks = [...logs.keys()].sort((a, b) => a - b);
  const current = rank ?? ranks[0] ?? null;
  const shown = logs.get(current);
  useEffect(() => { if (follow && box.current && !found) box.current.scrollTop = box.current.scrollHeight; }, [logs, current, follow, found]);
  useEffect(() => {
    if (!text || current === null) { setFound(null); return; }
    let gone = false;
    const timer = setTimeout(async () => {
      try {
        const answer = await (await get("/api/logs", { id, rank: current, text })).json();
        if (!gone) setFound(answer);
      } catch { if (!gone) setFound({ lines: [], more: false }); }
    }, 200);
    return () => { gone = true; clearTimeout(timer); };
  }, [text, current, id]);
  return html`<section aria-labelledby="logs"><div class="bar"><h2 id="logs">Logs</h2>
      ${ranks.length > 1 && html`<div class="segments" role="group" aria-label="Rank">${ranks.slice(0, 32).map((r) => html`<button key=${r} type="button" aria-pressed=${r === current} onClick=${() => setRank(r)}>${r}</button>`)}</div>`}
      <input type="search" placeholder="Search this log ( / )" aria-label="Search this log" value=${text} onInput=${(e) => setText(e.target.value)} onKeyDown=${(e) => e.key === "Escape" && setText("")} />
      <label class="choice"><input type="checkbox" checked=${follow} onChange=${(e) => setFollow(e.target.checked)} /> Follow</label>
      ${found && html`<span class="muted" role="status">${found.lines.length}${found.more ? " and more" : ""} found</span>`}</div>
    ${ranks.length === 0 ? html`<p class="muted">Nothing was printed.</p>`
      : html`<pre class="log" ref=${box} tabindex="0" aria-label=${`Log of rank ${current}`}>${found
        ? found.lines.map(([n, line]) => html`<span class="line" key=${n}><i>${n}</i>${marked(line, text)}</span>`)
        : html`${shown.lines.map((line, i) => html`<span class="line" key=${shown.from + i}>${line}</span>`)}${shown.unended && html`<span class="line unended" key="unended">${shown.unended}</span>`}`}</pre>`}</section>`;
}

function marked(line, text) {
  const at = line.toLowerCase().indexOf(text.toLowerCase());
  return at < 0 ? line : html`${line.slice(0, at)}<mark>${line.slice(at, at + text.length)}</mark>${line.slice(at + text.length)}`;
}
