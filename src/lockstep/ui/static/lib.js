// What every page uses: the view library, texts for numbers and times, the theme.
import { h, render, Fragment } from "./vendor/preact.js";
import { useState, useEffect, useRef, useMemo, useCallback } from "./vendor/hooks.js";
import htm from "./vendor/htm.js";

export const html = htm.bind(h);
export { h, render, Fragment, useState, useEffect, useRef, useMemo, useCallback };

export function number(value) {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return String(value);
  if (Number.isInteger(value) && Math.abs(value) < 1e15) return value.toLocaleString("en-US");
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(3);
  return String(Number(value.toPrecision(5)));
}

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (value >= 1000 && unit < units.length - 1) { value /= 1000; unit += 1; }
  return `${unit ? value.toPrecision(3) : value} ${units[unit]}`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "–";
  if (seconds < 1) return `${Number((seconds * 1000).toPrecision(2))} ms`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 100) return `${Math.round(seconds)} s`;
  if (seconds < 600) return `${Math.floor(seconds / 60)} min ${Math.floor(seconds % 60)} s`;
  if (seconds < 6000) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 172800) return `${(seconds / 3600).toFixed(1)} h`;
  return `${Math.floor(seconds / 86400)} d`;
}

export const age = (time) => (time ? duration(Math.max(Date.now() / 1000 - time, 0)) : "–");

export function date(time) {
  return time ? new Date(time * 1000).toLocaleString("sv-SE") : "–";
}

export const plural = (count, noun) => `${number(count)} ${noun}${count === 1 ? "" : "s"}`;

export const LINES = 12;
export const colour = (index) => cssColour(`--line-${(index % 8) + 1}`);
export function cssColour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// ------------------------------------------------------------------------------- preferences

const stored = (key, otherwise) => {
  try { return JSON.parse(localStorage.getItem(`lockstep.${key}`)) ?? otherwise; } catch { return otherwise; }
};

export function usePreference(key, otherwise) {
  const [value, setValue] = useState(() => stored(key, otherwise));
  return [value, (next) => {
    setValue(next);
    try { localStorage.setItem(`lockstep.${key}`, JSON.stringify(next)); } catch { /* private mode */ }
  }];
}

export function applyTheme(theme) {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  window.dispatchEvent(new Event("themechange"));
}

export function useThemeVersion() {
  const [version, setVersion] = useState(0);
  useEffect(() => {
    const changed = () => setVersion((v) => v + 1);
    const media = matchMedia("(prefers-color-scheme: dark)");
    window.addEventListener("themechange", changed);
    media.addEventListener("change", changed);
    return () => {
      window.removeEventListener("themechange", changed);
      media.removeEventListener("change", changed);
    };
  }, []);
  return version;
}

// ----------------------------------------------------------------------------------- address

export function route() {
  const [path, query] = location.hash.replace(/^#/, "").split("?");
  return { parts: path.split("/").filter(Boolean).map(decodeURIComponent), query: new URLSearchParams(query) };
}

export const to = {
  runs: () => "#/",
  run: (id) => `#/run/${encodeURIComponent(id)}`,
  workers: (id) => `#/run/${encodeURIComponent(id)}/workers`,
  experiment: (id) => `#/experiment/${encodeURIComponent(id)}`,
  compare: (ids) => `#/compare?${ids.map((id) => `id=${encodeURIComponent(id)}`).join("&")}`,
};

// -------------------------------------------------------------------------------------- live

// Messages of the server for one view. Closed while nobody looks, so that many tabs are no load.
export function useEvents(query, onMessage, deps) {
  const [state, setState] = useState("connecting");
  const latest = useRef(onMessage);
  latest.current = onMessage;
  useEffect(() => {
    let source = null;
    const open = () => {
      if (source || document.hidden) return;
      setState("connecting");
      source = new EventSource(`/api/events?${query}`);
      source.onopen = () => { latest.current({ type: "open" }); setState("live"); };
      source.onerror = () => setState(source && source.readyState === 2 ? "refused" : "lost");
      source.onmessage = (event) => latest.current(JSON.parse(event.data));
    };
    const close = () => { if (source) source.close(); source = null; };
    const look = () => (document.hidden ? close() : open());
    open();
    document.addEventListener("visibilitychange", look);
    return () => { document.removeEventListener("visibilitychange", look); close(); };
  }, deps ?? [query]);
  useEffect(() => {
    window.dispatchEvent(new CustomEvent("connection", { detail: state }));
  }, [state]);
  return state;
}

// Draws at once, then not more often than a page with ten thousand rows can.
export function useSpacing(ms) {
  const state = useRef({ timer: 0, last: 0, call: null });
  useEffect(() => () => clearTimeout(state.current.timer), []);
  return (call) => {
    const own = state.current;
    own.call = call;
    if (own.timer) return;
    const wait = Math.max(0, own.last + ms - performance.now());
    const run = () => { own.timer = 0; own.last = performance.now(); own.call(); };
    if (wait) own.timer = setTimeout(run, wait);
    else run();
  };
}

export async function get(path, values) {
  const response = await fetch(`${path}?${new URLSearchParams(values)}`);
  if (!response.ok) throw new Error(`${response.status}: ${(await response.text()).trim()}`);
  return response;
}

// ------------------------------------------------------------------------------ small pieces

const STATES = {
  running: "good", starting: "info", finished: "done", failed: "bad", damaged: "bad",
  unfinished: "warn", interrupted: "warn", preempted: "warn",
  RUNNING: "good", TERMINATED: "done", ERROR: "bad", PENDING: "info", PAUSED: "warn",
};

export function State({ state }) {
  return html`<span class=${`state ${STATES[state] ?? "info"}`}>${state}</span>`;
}

export function Copy({ text, label, what, kind = "quiet" }) {
  const [done, setDone] = useState("");
  const copy = async () => {
    try {
      const value = typeof text === "function" ? await text() : text;
      await writeText(value);
      setDone("Copied");
    } catch (error) {
      setDone(`Not copied: ${error.message}`);
    }
    setTimeout(() => setDone(""), 2500);
  };
  return html`<span class="copy"><span class="said" role="status">${done}</span><button type="button" class=${kind} onClick=${copy} title=${what ?? ""}>${label ?? "Copy"}</button></span>`;
}

async function writeText(text) {
  if (navigator.clipboard) {
    try { await navigator.clipboard.writeText(text); return; } catch { /* not allowed: the old way */ }
  }
  const area = document.createElement("textarea");
  area.value = text;
  area.className = "offscreen";
  document.body.append(area);
  area.select();
  const ok = document.execCommand("copy");
  area.remove();
  if (!ok) throw new Error("the browser does not allow it");
}

// The accounts of the ledger, as lockstep why and result.goodput have them.
const ACCOUNTS = [
  ["compute", "computing"], ["data", "waiting for data"], ["ranks", "waiting for other ranks"],
  ["communication", "in collectives"], ["checkpoint", "writing checkpoints"], ["reporting", "reporting"],
  ["starting", "starting workers"], ["restarting", "restarting"], ["lost", "work lost to failures"], ["idle", "idle at the end"],
];

const percent = (share) => (share < 0.005 ? "under 1 %" : `${Math.round(share * 100)} %`);

export function Spent({ spent, wide }) {
  const total = Object.values(spent ?? {}).reduce((sum, seconds) => sum + seconds, 0);
  if (!total) return html`<span class="muted">–</span>`;
  const parts = ACCOUNTS.filter(([key]) => spent[key] > 0).map(([key, label]) => ({ key, label, share: spent[key] / total, seconds: spent[key] }));
  const sorted = [...parts].sort((a, b) => b.share - a.share);
  const text = sorted.filter((p) => p.share >= 0.005).map((p) => `${p.label} ${percent(p.share)}`).join(", ");
  return html`<span class=${wide ? "spent whole" : "spent"} role="img" aria-label=${text} title=${text}>
      ${parts.map((p) => html`<i key=${p.key} class=${`a-${p.key}`} style=${{ flexGrow: p.share }}></i>`)}
    </span>
    ${wide ? html`<table class="legend"><tbody>${sorted.map((p) => html`<tr key=${p.key}><td><i class=${`key a-${p.key}`}></i>${p.label}</td>
        <td class="num">${duration(p.seconds)}</td><td class="num muted">${percent(p.share)}</td></tr>`)}</tbody></table>`
      : html`<span class="second">${sorted[0].label} ${percent(sorted[0].share)}</span>`}`;
}

export function Empty({ title, page, children }) {
  return html`<div class="empty">${page ? html`<h1>${title}</h1>` : html`<h2>${title}</h2>`}<div>${children}</div></div>`;
}

export function Reading({ share }) {
  return share === null || share === undefined ? null
    : html`<p class="reading" role="status"><progress max="1" value=${share} aria-label="Reading the journal"></progress>
      Reading the journal: ${Math.round(share * 100)} %</p>`;
}

export function Facts({ facts }) {
  return html`<dl class="facts">${facts.map(([label, value], i) => html`<${Fragment} key=${i}><dt>${label}</dt><dd>${value}</dd><//>`)}</dl>`;
}
