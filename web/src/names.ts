// Names of columns within an address: a key of a map may hold the very signs that part one name from the next.

/** The name with `%`, `,` and `:` spelt as in addresses. */
export const spelt = (name: string): string => name.replace(/[%,:]/g, (sign) => `%${sign.charCodeAt(0).toString(16).toUpperCase()}`);

/** The name that was spelt so. */
export const read = (text: string): string => text.replace(/%(25|2C|3A)/gi, (_, code: string) => String.fromCharCode(Number.parseInt(code, 16)));

export const speltList = (names: readonly string[]): string => names.map(spelt).join(",");
export const readList = (text: string | null | undefined): string[] => (text ?? "").split(",").filter(Boolean).map(read);
