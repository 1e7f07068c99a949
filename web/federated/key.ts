import { type Bytes, messageOf, StorageError } from "../trainer.ts";

const CURVE = { name: "ECDSA", namedCurve: "P-384" };
/** Bytes of each half of a signature. */
const HALF = 48;
const STORE = "keys";
const ENTRY = "federated";

/**
 * A P-384 key by which a server knows this client. Its private half is one of WebCrypto that no script can read: `kept` has it
 * in IndexedDB, where it stays until the site's data is cleared.
 */
export class NodeKey {
  private constructor(
    private readonly pair: CryptoKeyPair,
    /** The public half: PEM of a SubjectPublicKeyInfo. */
    readonly publicPem: Bytes,
  ) {}

  /** A key pair of ECDSA on P-384 that may sign, with a public half that can be exported. Throws TypeError for another one. */
  static async of(pair: CryptoKeyPair): Promise<NodeKey> {
    const { name, namedCurve } = pair.publicKey.algorithm as EcKeyAlgorithm;
    if (name !== CURVE.name || namedCurve !== CURVE.namedCurve) {
      throw new TypeError(`expected a P-384 key, got ${name} ${namedCurve}`);
    }
    const der = new Uint8Array(await crypto.subtle.exportKey("spki", pair.publicKey));
    const lines = base64(der).match(/.{1,64}/g) ?? [];
    const pem = ["-----BEGIN PUBLIC KEY-----", ...lines, "-----END PUBLIC KEY-----", ""].join("\n");
    return new NodeKey(pair, new TextEncoder().encode(pem));
  }

  /** A new key, for this visit alone. A server counts each key as a client of its own: an app keeps one (`kept`). */
  static async generate(): Promise<NodeKey> {
    return await NodeKey.of(await crypto.subtle.generateKey(CURVE, false, ["sign", "verify"]));
  }

  /** The key of this name in the browser's storage, made where there is none. Throws StorageError. */
  static async kept(name: string): Promise<NodeKey> {
    const made = await crypto.subtle.generateKey(CURVE, false, ["sign", "verify"]);
    try {
      return await NodeKey.of(await added(`pocketune-key ${name}`, made));
    } catch (error) {
      throw new StorageError(`the key cannot be kept: ${messageOf(error)}`);
    }
  }

  /** The DER signature ECDSA with SHA-256 of some bytes. */
  async sign(bytes: Bytes): Promise<Bytes> {
    const how = { name: "ECDSA", hash: "SHA-256" };
    return derOf(new Uint8Array(await crypto.subtle.sign(how, this.pair.privateKey, bytes)));
  }
}

/** A signature r||s, as WebCrypto gives it, in DER: a sequence of two whole numbers. */
export function derOf(raw: Bytes): Bytes {
  const body = [raw.subarray(0, HALF), raw.subarray(HALF)].flatMap(integerOf);
  return Uint8Array.from([0x30, body.length, ...body]);
}

/** A whole number in DER: the fewest bytes, of which the first bit says that it is not negative. */
function integerOf(bytes: Uint8Array): number[] {
  const first = bytes.findIndex((byte) => byte !== 0);
  const digits = first < 0 ? [0] : [...bytes.subarray(first)];
  if ((digits[0] ?? 0) >= 0x80) digits.unshift(0);
  return [0x02, digits.length, ...digits];
}

export function base64(bytes: Uint8Array): string {
  return btoa(String.fromCharCode(...bytes));
}

/** The pair in a database, into which the one given goes where there is none: of two tabs at once, one is first. */
async function added(database: string, made: CryptoKeyPair): Promise<CryptoKeyPair> {
  const opening = indexedDB.open(database, 1);
  opening.onupgradeneeded = () => opening.result.createObjectStore(STORE);
  const opened = await result(opening);
  try {
    const keys = opened.transaction(STORE, "readwrite", { durability: "strict" }).objectStore(STORE);
    const found: CryptoKeyPair | undefined = await result(keys.get(ENTRY));
    if (found) return found;
    await result(keys.put(made, ENTRY));
    return made;
  } finally {
    opened.close();
  }
}

function result<T>(request: IDBRequest<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}
