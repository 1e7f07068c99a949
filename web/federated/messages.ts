/**
 * The messages of Flower 1.42 that a client needs, as `android_app/federated/src/main/proto` has them (Copyright Flower Labs
 * GmbH, Apache-2.0), by the names and numbers of their fields. A test compares them.
 */

import {
  bool,
  bytes,
  double,
  type Field,
  type MessageOf,
  many,
  nested,
  one,
  optional,
  packedDoubles,
  Schema,
  sint64,
  string,
  uint64,
} from "./protobuf.ts";

const NOTHING = new Uint8Array();
const id = (number: number) => one(number, uint64, 0n);
const text = (number: number) => one(number, string, "");
const node = (number: number) =>
  optional(
    number,
    nested(() => Node),
  );

export const Node = new Schema({ node_id: id(1) });

export const FlowerError = new Schema({ code: one(1, sint64, 0n), reason: text(2) });

export type Metadata = MessageOf<typeof Metadata.fields>;
export const Metadata = new Schema({
  run_id: id(1),
  message_id: text(2),
  src_node_id: id(3),
  dst_node_id: id(4),
  reply_to_message_id: text(5),
  group_id: text(6),
  ttl: one(7, double, 0),
  message_type: text(8),
  created_at: one(9, double, 0),
  src_task_id: optional(10, uint64),
  dst_task_id: optional(11, uint64),
});

/** What a message carries lies in objects of their own. */
export const RecordDict = new Schema({});

export type Message = MessageOf<typeof Message.fields>;
export const Message = new Schema({
  metadata: optional(
    1,
    nested(() => Metadata),
  ),
  content: optional(
    2,
    nested(() => RecordDict),
  ),
  error: optional(
    3,
    nested(() => FlowerError),
  ),
});

export interface ObjectTree {
  readonly object_id: string;
  readonly children: ObjectTree[];
}
const children: Field<ObjectTree[]> = many(
  2,
  nested((): Schema<TreeFields> => ObjectTree),
);
type TreeFields = { object_id: Field<string>; children: Field<ObjectTree[]> };
export const ObjectTree: Schema<TreeFields> = new Schema({ object_id: text(1), children });

export const RegisterNodeFleetRequest = new Schema({ public_key: one(1, bytes, NOTHING) });
export const ActivateNodeRequest = new Schema({
  public_key: one(1, bytes, NOTHING),
  heartbeat_interval: one(2, double, 0),
});
export const ActivateNodeResponse = new Schema({ node_id: id(1) });
export const DeactivateNodeRequest = new Schema({ node_id: id(1) });
export const SendNodeHeartbeatRequest = new Schema({ node: node(1), heartbeat_interval: one(2, double, 0) });
export const SendNodeHeartbeatResponse = new Schema({ success: one(1, bool, false) });

export const PullMessagesRequest = new Schema({ node: node(1) });
export const PullMessagesResponse = new Schema({
  messages_list: many(
    2,
    nested(() => Message),
  ),
  message_object_trees: many(
    3,
    nested(() => ObjectTree),
  ),
});
export const PushMessagesRequest = new Schema({
  node: node(1),
  messages_list: many(
    2,
    nested(() => Message),
  ),
  message_object_trees: many(
    3,
    nested(() => ObjectTree),
  ),
  clientapp_runtime_list: optional(4, packedDoubles),
});
export const PushMessagesResponse = new Schema({ objects_to_push: many(3, string), session_id: text(4) });
export const PushObjectRequest = new Schema({
  node: node(1),
  run_id: id(2),
  object_id: text(3),
  object_content: one(4, bytes, NOTHING),
  session_id: text(5),
});
export const PushObjectResponse = new Schema({ stored: one(1, bool, false) });
export const PullObjectRequest = new Schema({ node: node(1), run_id: id(2), object_id: text(3) });
export const PullObjectResponse = new Schema({
  object_found: one(1, bool, false),
  object_available: one(2, bool, false),
  object_content: one(3, bytes, NOTHING),
});
export const ConfirmMessageReceivedRequest = new Schema({ node: node(1), run_id: id(2), message_object_id: text(3) });

export const MetricRecordValue = new Schema({ double: optional(1, double), sint64: optional(2, sint64) });
export const MetricRecord = new Schema({
  items: many(
    1,
    nested(
      () =>
        new Schema({
          key: text(1),
          value: optional(
            2,
            nested(() => MetricRecordValue),
          ),
        }),
    ),
  ),
});

export const ConfigRecordValue = new Schema({
  double: optional(1, double),
  sint64: optional(2, sint64),
  uint64: optional(3, uint64),
  bool: optional(4, bool),
  string: optional(5, string),
});
export const ConfigRecord = new Schema({
  items: many(
    1,
    nested(
      () =>
        new Schema({
          key: text(1),
          value: optional(
            2,
            nested(() => ConfigRecordValue),
          ),
        }),
    ),
  ),
});
