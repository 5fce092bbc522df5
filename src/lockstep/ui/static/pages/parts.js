// The head of the pages about one run.
import { html, useRef, useState, useEvents, State, Copy, Reading, age, date, duration, number, plural, get, to } from "../lib.js";

// What the server has said of a run so far.
export function useRun(id) {
  const [data, setData] = useState({ run: null, details: null, environment: null, late: [], lines: {}, missing: false });
  const lines = useRef({});
  useEvents(`view=run&id=${encodeURIComponent(id)}`, (message) => {
    if (message.type === "open") lines.current = {};
    else if (message.type === "missing") setData((old) => ({ ...old, missing: true }));
    else if (message.type === "run") {
      setData((old) => ({
        ...old, missing: false, run: message.run, late: message.late,
        details: message.details ?? old.details, environment: message.environment ?? old.environment,
      }));
    } else if (message.type === "lines") {
      const next = { ...lines.current };
      for (const [name, line] of Object.entries(message.lines)) {
        const old = next[name];
        next[name] = line.add && old
          ? { steps: old.steps.concat(line.steps), times: old.times.concat(line.times), values: old.values.concat(line.values) }
          : { steps: line.steps, times: line.times, values: line.values };
      }
      lines.current = next;
      setData((old) => ({ ...old, lines: next }));
    }
  });
  return data;
}

export function RunHead({ id, run, details, tab }) {
  const running = run.state === "running" || run.state === "starting";
  const took = (run.ended ?? (running ? Date.now() / 1000 : run.updated)) - run.started;
  return html`
    <nav class="crumbs" aria-label="Where you are"><a href=${to.runs()}>Runs</a> <span aria-hidden="true">/</span>
      ${details?.trial ? html` <a href=${to.experiment(details.trial.experiment)}>${run.experiment}</a> <span aria-hidden="true">/</span> trial ${details.trial.trial_id}` : html` ${run.experiment}`}</nav>
    <div class="bar head"><h1>${run.experiment || run.name}</h1><${State} state=${run.state} />
      <span class="grow"></span>
      <${Copy} kind="outline" label="Copy diagnosis" what="State, failures, stacks, logs and environment, as text" text=${async () => (await get("/api/diagnosis", { id })).text()} />
    </div>
    <p class="under muted">${run.name} · started ${date(run.started)} (${age(run.started)} ago) · ${running ? "running for" : "took"} ${duration(took)} · ${plural(run.reports, "report")} · ${plural(run.workers, "worker")}${run.attempts > 1 ? html` · <b class="warn-text">${plural(run.attempts, "attempt")}</b>` : ""}</p>
    ${details?.parent && html`<p class="under muted">Forked from ${details.parent.id ? html`<a href=${to.run(details.parent.id)}>${details.parent.name}</a>` : details.parent.name} at step ${details.parent.step}.</p>`}
    ${run.note && html`<p class="note">${run.note}</p>`}
    ${run.diagnosis && html`<p class="problem" role="alert">${run.diagnosis}</p>`}
    <${Reading} share=${run.behind} />
    <nav class="tabs" aria-label="Pages of this run">
      <a href=${to.run(id)} aria-current=${tab === "run" ? "page" : undefined}>Charts and records</a>
      <a href=${to.workers(id)} aria-current=${tab === "workers" ? "page" : undefined}>Workers and logs</a></nav>`;
}

export const metricOf = (name) => name.slice(name.indexOf(":") + 1);
export { number };
