// SVG paths from points `[start of a bucket, value]`; nothing is drawn where nothing was measured.

const GAP = 2.5; // buckets without a point that break a line

/** A line through the middles of buckets, or with steps: each value holds until the next one. */
export function linePath(points, { x, y, bucketS }, isStepped) {
  let path = "";
  points.forEach(([at, value], i) => {
    const isFirst = i === 0 || at - points[i - 1][0] > GAP * bucketS;
    const left = x(isStepped ? at : at + bucketS / 2).toFixed(1);
    if (isFirst) path += `M${left} ${y(value).toFixed(1)}`;
    else if (isStepped) path += `H${left}V${y(value).toFixed(1)}`;
    else path += `L${left} ${y(value).toFixed(1)}`;
    if (isStepped && isLast(points, i, bucketS)) path += `H${x(at + bucketS).toFixed(1)}`;
    else if (isFirst) path += "h0.01"; // a single point is a dot
  });
  return path;
}

/** The area below a stepped line. */
export function areaPath(points, { x, y, bucketS }) {
  let path = "";
  points.forEach(([at, value], i) => {
    const isFirst = i === 0 || at - points[i - 1][0] > GAP * bucketS;
    path += isFirst ? `M${x(at).toFixed(1)} ${y(0).toFixed(1)}V${y(value).toFixed(1)}` : `H${x(at).toFixed(1)}V${y(value).toFixed(1)}`;
    if (isLast(points, i, bucketS)) path += `H${x(at + bucketS).toFixed(1)}V${y(0).toFixed(1)}z`;
  });
  return path;
}

function isLast(points, i, bucketS) {
  return i === points.length - 1 || points[i + 1][0] - points[i][0] > GAP * bucketS;
}

/** The value at a moment: that of the newest bucket that has begun, unless it is too old. */
export function sampleAt(points, atS, bucketS) {
  const found = points.findLast(([at]) => at <= atS);
  return found && atS - found[0] <= GAP * bucketS ? found[1] : null;
}

/** The end of a scale: a round number that is not below a value. */
export function roundTop(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 1.5, 2, 3, 4, 5, 6, 8, 10].map((step) => step * power).find((step) => step >= value * (1 - 1e-9));
}
