// How numbers and times are written.

const NONE = "–";

const known = (value) => typeof value === "number" && Number.isFinite(value);

// 950, 12.3k, 7M
export function brief(value) {
  if (!known(value)) return NONE;
  let size = Math.abs(value);
  let letter = "";
  for (const power of ["k", "M", "G", "T", "P"]) {
    if (size < 999.5) break;
    size /= 1000;
    letter = power;
  }
  const digits = size >= 99.95 || (letter === "" && Number.isInteger(size)) ? size.toFixed(0) : size >= 9.995 || letter ? size.toFixed(1) : size.toPrecision(2);
  return (value < 0 ? "-" : "") + (digits.includes(".") ? digits.replace(/\.?0+$/, "") : digits) + letter;
}

export const whole = (value) => (known(value) ? Math.round(value).toLocaleString("en") : NONE);
export const rate = (value) => (known(value) ? `${brief(value)}/s` : NONE);
export const bytes = (value) => (known(value) ? (Math.abs(value) < 1000 ? `${value} B` : brief(value).replace(/([kMGTP]?)$/, " $1B")) : NONE);
export const percent = (value) => (known(value) ? `${Math.round(value * 100)} %` : NONE);

export function millis(value) {
  if (!known(value)) return NONE;
  return value < 10 ? `${value.toFixed(1)} ms` : value < 10000 ? `${Math.round(value)} ms` : secs(value / 1000);
}

export function secs(value) {
  if (!known(value)) return NONE;
  const size = Math.abs(value);
  if (size < 10) return `${value.toFixed(1)} s`;
  if (size < 120) return `${Math.round(value)} s`;
  if (size < 7200) return `${Math.floor(value / 60)} min`;
  if (size < 172800) return `${Math.floor(value / 3600)} h ${Math.floor((value % 3600) / 60)} min`;
  return `${Math.floor(value / 86400)} days`;
}

// A time of the document in milliseconds, or null.
export function moment(iso) {
  const found = typeof iso === "string" ? Date.parse(iso) : NaN;
  return Number.isNaN(found) ? null : found;
}

const two = (number) => String(number).padStart(2, "0");

// In the reader's own zone: today without the date.
export function clock(iso) {
  const at = moment(iso);
  if (at === null) return NONE;
  const date = new Date(at);
  const time = `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
  const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  return date.toDateString() === new Date().toDateString() ? time : `${day} ${time}`;
}

export const many = (number, noun) => `${whole(number)} ${noun}${number === 1 ? "" : "s"}`;

// One line, whatever a name has in it, and nothing that turns round what stands beside it.
export const line = (text) => String(text).replace(/\s+/g, " ").replace(/[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u202a-\u202e\u2060-\u2069]/g, "�");
