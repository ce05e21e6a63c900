// Which characters are not seen, or turn the text around them: controls, marks of direction, zero widths, tags, lone surrogates.

const UNSEEN = "[\\p{Cc}\\p{Cf}\\p{Cs}\\p{Zl}\\p{Zp}]";
/** Persian, Hindi and many emoji cannot be written without them, and they neither hide nor reorder text. */
const JOINERS = "[\\u200c\\u200d]";

/** One of them, in text of many lines. */
export const UNSEEN_IN_TEXT = new RegExp(`(?!${JOINERS}|[\\t\\n]|\\r\\n)${UNSEEN}`, "gu");

/** Some of them, in text that stays on one line. */
export const UNSEEN_IN_LINE = new RegExp(`(?:(?!${JOINERS})${UNSEEN})+`, "gu");
