// Column names in addresses. They are percent-encoded because map keys may contain `,` or `:`.

export const encodeName = (name: string): string => name.replace(/[%,:]/g, (sign) => `%${sign.charCodeAt(0).toString(16).toUpperCase()}`);

export const decodeName = (text: string): string => text.replace(/%(25|2C|3A)/gi, (_, code: string) => String.fromCharCode(Number.parseInt(code, 16)));

export const encodeNames = (names: readonly string[]): string => names.map(encodeName).join(",");
export const decodeNames = (text: string | null | undefined): string[] => (text ?? "").split(",").filter(Boolean).map(decodeName);
