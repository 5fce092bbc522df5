// A table of any length: only the rows that can be seen are in the page.
import { html, useEffect, useRef, useState } from "./lib.js";

const SPARE = 12;

export function Table({ columns, rows, height, label, sort, onSort, rowClass, onOpen, onToggle, head }) {
  const body = useRef(null);
  const [span, setSpan] = useState([0, 60]);
  // The row that the keys are at, by its id: rows come and go. Keys may be faster than the page is drawn.
  const current = useRef(null);
  const [at, setAt] = useState(null);
  const measure = () => {
    if (!body.current) return;
    const top = body.current.getBoundingClientRect().top;
    const first = Math.max(0, Math.floor(-top / height) - SPARE);
    const last = Math.ceil((innerHeight - top) / height) + SPARE;
    setSpan((old) => (old[0] === first && old[1] === last ? old : [first, last]));
  };
  useEffect(() => {
    measure();
    addEventListener("scroll", measure, { passive: true });
    addEventListener("resize", measure);
    return () => { removeEventListener("scroll", measure); removeEventListener("resize", measure); };
  }, [rows.length, height]);
  useEffect(() => {
    const key = (event) => {
      if (event.target.closest("input,select,textarea,dialog") || event.ctrlKey || event.metaKey || event.altKey) return;
      const index = rows.findIndex((row) => row.id !== undefined && row.id === current.current);
      if (event.key === "j" || event.key === "k") {
        event.preventDefault();
        let next = index + (event.key === "j" ? 1 : -1);
        while (rows[next]?.group !== undefined && rows[next]?.id === undefined) next += event.key === "j" ? 1 : -1;
        if (next < 0 || next >= rows.length) return;
        current.current = rows[next].id;
        setAt(current.current);
        const top = body.current.getBoundingClientRect().top + next * height;
        if (top < 80) scrollBy(0, top - 80);
        else if (top + height > innerHeight) scrollBy(0, top + height - innerHeight + 20);
      } else if (event.key === "Enter" && index >= 0 && !event.target.closest("a,button")) onOpen?.(rows[index]);
      else if (event.key === "x" && index >= 0) onToggle?.(rows[index]);
    };
    addEventListener("keydown", key);
    return () => removeEventListener("keydown", key);
  }, [rows]);
  const [first, last] = [Math.min(span[0], rows.length), Math.min(span[1], rows.length)];
  const sorted = (column) => (sort?.key === column.key ? (sort.down ? "descending" : "ascending") : column.sort ? "none" : undefined);
  return html`<div class="scroll-x" tabindex="0" role="region" aria-label=${label}><table aria-rowcount=${rows.length + 1}>
    <thead><tr>${columns.map((column) => html`<th key=${column.key} scope="col" class=${column.class} aria-sort=${sorted(column)}>
      ${column.sort && onSort ? html`<button type="button" class="sort" onClick=${() => onSort(column.key)}>${column.label}<span aria-hidden="true">${sort?.key === column.key ? (sort.down ? " ↓" : " ↑") : ""}</span></button>`
        : column.hidden ? html`<span class="offscreen">${column.label}</span>` : column.label}</th>`)}</tr>${head}</thead>
    <tbody ref=${body}>
      ${first > 0 && html`<tr key="before" aria-hidden="true" class="space"><td colspan=${columns.length} style=${{ height: `${first * height}px` }}></td></tr>`}
      ${rows.slice(first, last).map((row, i) => row.group !== undefined && row.id === undefined
        ? html`<tr key=${`g${row.group}`} class="group" style=${{ height: `${height}px` }}><th colspan=${columns.length} scope="rowgroup">${row.label}</th></tr>`
        : html`<tr key=${row.id} aria-rowindex=${first + i + 2} style=${{ height: `${height}px` }}
            class=${`${rowClass?.(row) ?? ""}${row.id === at ? " at" : ""}`}>
            ${columns.map((column) => html`<td key=${column.key} class=${column.class}>${column.cell(row)}</td>`)}</tr>`)}
      ${last < rows.length && html`<tr key="after" aria-hidden="true" class="space"><td colspan=${columns.length} style=${{ height: `${(rows.length - last) * height}px` }}></td></tr>`}
    </tbody></table></div>`;
}

export function compare(value, down) {
  return (a, b) => {
    const x = value(a), y = value(b);
    const none = (v) => v === null || v === undefined || v === "";
    if (none(x) || none(y)) return none(x) ? (none(y) ? 0 : 1) : -1;   // what has no value is last
    const order = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y), "en", { numeric: true });
    return down ? -order : order;
  };
}
