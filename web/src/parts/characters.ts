// Places in texts: records count whole characters, strings count halves of pairs.

/** Where so many characters of a text end that begin at a place of the string. */
export function endOf(text: string, characters: number, from = 0): number {
  let place = from;
  for (let left = characters; left > 0 && place < text.length; left -= 1) place += (text.codePointAt(place) ?? 0) > 0xffff ? 2 : 1;
  return place;
}

/** Where in a text its first so many characters end. */
export function codeUnits(text: string, characters: number): number {
  return /[\ud800-\udbff]/.test(text) ? endOf(text, characters) : Math.min(characters, text.length);
}
