// The rule by which Headrace's servers end an answer that repeats itself.

/** The value of `repetition_detection`: a passage of at least 24 tokens, three times in a row. No list or table does that. */
export const LOOPS = { max_pattern_size: 256, min_pattern_size: 24, min_count: 3 };
