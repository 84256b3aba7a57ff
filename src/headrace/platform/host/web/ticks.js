// Round moments for time axes: full minutes, five minutes, hours, in the reader's time zone.

const STEPS_S = [10, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 14400, 21600, 43200, 86400];

/** The round moments from `startS` to `endS`, at most about `most` of them. */
export function roundMoments(startS, endS, most) {
  const stepS = STEPS_S.find((step) => (endS - startS) / step <= most) ?? STEPS_S.at(-1);
  const shiftS = new Date(endS * 1000).getTimezoneOffset() * 60;
  const moments = [];
  for (let at = Math.ceil((startS - shiftS) / stepS) * stepS + shiftS; at <= endS; at += stepS) moments.push(at);
  return moments;
}
