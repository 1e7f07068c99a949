/** Federated training of Pocketune's programs in a page: a client of an unmodified Flower SuperLink 1.42. */
export { adopt, type Take } from "./federated/adoption.ts";
export { FederatedClient, type Rows, type Served, type ServeOptions } from "./federated/client.ts";
export * from "./federated/errors.ts";
export type { SuperLink } from "./federated/http.ts";
export { federatedIdentity } from "./federated/identity.ts";
export { NodeKey } from "./federated/key.ts";
export { Participant } from "./federated/participant.ts";
export type { Bounds } from "./federated/round-plan.ts";
