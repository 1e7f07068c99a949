import { InputError } from "../errors.ts";
import { rowsOf } from "../manifest/manifest.ts";
import type { Program } from "../program/program.ts";
import { labelledClasses, type Row, type Sample, type Values } from "../program/samples.ts";
import type { Shrinkage } from "../state/discriminant.ts";
import { KnownClasses } from "../state/known-classes.ts";
import { type Batch, inBatches } from "./batches.ts";
import type { Engine } from "./engine.ts";
import type { Inputs } from "./inputs.ts";

/** Changes of classes in the state in memory, one at a time; `Trainer` says what each does. */
export class RunTimeClasses {
  constructor(
    private readonly program: Program,
    private readonly engine: Engine,
    private readonly inputs: Inputs,
    private readonly checkOpen: () => void,
  ) {}

  async setMeans(samples: readonly Sample[], shrinkage?: Shrinkage): Promise<void> {
    this.inputs.check(samples);
    const labels = samples.map((sample) => {
      const [label, ...others] = labelledClasses(sample);
      if (label === undefined || others.length > 0) throw new InputError("y: labels of known classes, one a row");
      return label;
    });
    const features = await this.features(samples.map((sample) => sample.inputs));
    await this.change((classes) => classes.setMeans(features, labels, shrinkage));
  }

  async add(name: string, rows?: readonly Row[]): Promise<number> {
    if (rows) this.inputs.checkRows(rows);
    const features = rows ? await this.features(rows) : null;
    return await this.change((classes) => classes.add(name, features));
  }

  async rename(name: string, after: string): Promise<void> {
    await this.change((classes) => classes.rename(name, after));
  }

  async forget(name: string): Promise<void> {
    await this.change((classes) => classes.forget(name));
  }

  private async change<T>(work: (classes: KnownClasses) => T): Promise<T> {
    const classes = new KnownClasses(this.program, await this.engine.read());
    const made = work(classes);
    await this.engine.write(classes.changed());
    return made;
  }

  /** What the last layer reads of each row. */
  private async features(rows: readonly Row[]): Promise<Values[]> {
    const { manifest } = this.program;
    if (!manifest.fields.head?.takes_features) {
      throw new InputError(
        "setting class means needs a program for it: build with head='class_means' and update='head'",
      );
    }
    const samples = rows.map((inputs) => ({ inputs, targets: {} }));
    const batches = inBatches(samples, rowsOf(manifest.signature("features")));
    const calls = batches.map((batch): [string, Batch] => ["features", batch]);
    const found = await this.engine.infer(calls, this.checkOpen);
    return found.map((row) => Object.values(row)[0] ?? new Float32Array());
  }
}
