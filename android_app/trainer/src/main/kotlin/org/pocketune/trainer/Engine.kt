package org.pocketune.trainer

import java.nio.ByteBuffer

/** One tensor of a signature and where its numbers are written or read. */
internal class Port(val spec: TensorSpec, val buffer: ByteBuffer) {
    private val floats = buffer.asFloatBuffer()
    private val ints = buffer.asIntBuffer()
    private val shorts = buffer.asShortBuffer()

    /** Writes one number. */
    fun set(value: Float, at: Int = 0) {
        floats.put(at, value)
    }

    /** The number of a tensor of one element. */
    fun get(): Float = floats.get(0)

    /** Writes a row; checked before. */
    fun put(row: Int, values: Values) {
        val start = row * spec.rowSize
        when (values) {
            is Values.Floats -> floats.duplicate().apply { position(start) }.put(values.array)
            is Values.Ints -> putWhole(start, values.array)
            is Values.Bools -> values.array.forEachIndexed { i, b -> buffer.put(start + i, if (b) 1 else 0) }
        }
    }

    /** All its numbers, float32. */
    fun numbers(): FloatArray = FloatArray(spec.size) { floats.get(it) }

    /** The mean of a row, float32. */
    fun mean(row: Int): Double = (0 until spec.rowSize).sumOf { floats.get(row * spec.rowSize + it).toDouble() } / spec.rowSize

    /** Reads a row. */
    fun take(row: Int): Values {
        val start = row * spec.rowSize
        return when (spec.dtype) {
            Dtype.FLOAT32 -> Values.Floats(FloatArray(spec.rowSize) { floats.get(start + it) })
            Dtype.INT32 -> Values.Ints(IntArray(spec.rowSize) { ints.get(start + it) })
            Dtype.BOOL -> Values.Bools(BooleanArray(spec.rowSize) { buffer.get(start + it) != 0.toByte() })
            Dtype.INT8 -> Values.Ints(IntArray(spec.rowSize) { buffer.get(start + it).toInt() })
            Dtype.UINT8 -> Values.Ints(IntArray(spec.rowSize) { buffer.get(start + it).toInt() and BYTE })
            Dtype.INT16 -> Values.Ints(IntArray(spec.rowSize) { shorts.get(start + it).toInt() })
        }
    }

    private fun putWhole(start: Int, numbers: IntArray) = when (spec.dtype) {
        Dtype.INT8, Dtype.UINT8 -> numbers.forEachIndexed { i, number -> buffer.put(start + i, number.toByte()) }
        Dtype.INT16 -> numbers.forEachIndexed { i, number -> shorts.put(start + i, number.toShort()) }
        else -> {
            ints.duplicate().apply { position(start) }.put(numbers)
            Unit
        }
    }

    private companion object {
        const val BYTE = 0xff
    }
}

/** What outlives a call. */
private val LENT = setOf(Role.STATE, Role.GRADIENT)

/**
 * What may be called, with its buffers, all but those of the state and the gradients, which the memory lends.
 *
 * @property called the signature of the file.
 * @property before is called before it with the rows, where it takes what that gives.
 */
internal class EntryPoint(val name: String, signature: Signature, val called: String = name, val before: EntryPoint? = null) {
    private val own = ports(signature.inputs.filter { before == null || it.role != Role.INPUT })

    /** What is written before a call. */
    val inputs: Map<String, Port> = before?.inputs.orEmpty() + own

    /** What the signature of the file takes. */
    val taken: Map<String, Port> = before?.outputs.orEmpty() + own
    val outputs: Map<String, Port> = ports(signature.outputs)

    /** Writes rows; what lacks to a batch repeats the first one, a row that the model is known to take, with weight 0. */
    fun fill(batch: Batch) {
        for (port in inputs.values) {
            val rows = port.spec.shape[0]
            when (port.spec.role) {
                Role.INPUT -> repeat(rows) { port.put(it, batch.rowOrFirst(it).inputs.getValue(port.spec.name)) }
                Role.TARGET -> repeat(rows) { port.put(it, batch.rowOrFirst(it).targets.getValue(port.spec.label)) }
                Role.WEIGHT -> repeat(rows) { port.set(batch.weights.getOrElse(it) { 0f }, it) }
                else -> Unit
            }
        }
    }

    /** What a call gave. */
    fun loss(): Float = outputs.getValue("loss").get()

    /** The loss of each of the rows that a call was given; of none where it does not give it. */
    fun rowLosses(rows: Int): FloatArray = outputs["row_losses"]?.numbers()?.copyOf(rows) ?: FloatArray(0)

    private fun ports(specs: List<TensorSpec>): Map<String, Port> =
        specs.filter { it.role !in LENT }.associate { it.name to Port(it, directBuffer(it.size * it.dtype.bytes)) }
}

/**
 * The signatures of a program in a runtime, and its state. Not thread-safe: it belongs to the trainer's thread. The
 * buffers of a signature are made when it is first asked for.
 */
internal class Engine(program: Program, private val runtime: TrainingRuntime) {
    private val manifest = program.manifest
    private val entries = HashMap<String, EntryPoint>()
    private val memory: Memory = when (manifest.state) {
        StateKind.VARIABLES -> Variables(manifest, runtime)
        StateKind.STATELESS, StateKind.SPLIT -> Arguments(program, isHalf = runtime.report.runs == Accelerator.NPU)
    }
    private var isLost = false

    /** The loss of each row of the last step; of none where the program does not give it. */
    var rowLosses = FloatArray(0)
        private set

    /** Whether the last step ended before its update, and so left gradients behind. */
    private var isHalfDone = false

    /**
     * A training step; returns the loss before it. The state is then not to be trusted if that is not finite.
     *
     * @param signature that takes the rows: of the model's inputs, or of what its first layers gave.
     * @throws DivergedException a gradient is too large, or something that the step writes is not finite; nor is the state
     *   to be trusted then.
     */
    fun train(batch: Batch, rate: Float, signature: String = manifest.stepName): Float =
        if (manifest.updatingName == UPDATE) trainByParts(batch, rate, signature) else trainAtOnce(batch, rate, signature)

    private fun trainAtOnce(batch: Batch, rate: Float, signature: String): Float {
        val train = filled(signature, batch)
        update(train, rate) { train.loss() }
        rowLosses = train.rowLosses(batch.rows.size)
        return train.loss()
    }

    /** Adds up the gradients of the parts of a batch, then updates. */
    private fun trainByParts(batch: Batch, rate: Float, signature: String): Float {
        if (isHalfDone) write(read())
        isHalfDone = true
        // `accumulate` gives the part's share of the loss and adds that of the gradient, `gradients` gives its own means.
        val ofMeans = manifest.state == StateKind.SPLIT
        var sum = 0.0
        rowLosses = FloatArray(0)
        for (part in (if (ofMeans) batch else batch.asShares()).parts(manifest.microBatch)) {
            val share = if (ofMeans) part.weight / batch.weight else 1.0
            val step = filled(signature, part)
            run(step)
            sum += share * step.loss()
            rowLosses += step.rowLosses(part.rows.size)
            if (!sum.isFinite()) return sum.toFloat()
            memory.keep(step, share.toFloat())
        }
        update(entry(manifest.updatingName), rate) { sum.toFloat() }
        isHalfDone = false
        return sum.toFloat()
    }

    private fun update(entry: EntryPoint, rate: Float, loss: () -> Float) {
        entry.inputs.getValue("learning_rate").set(rate)
        run(entry)
        if (loss().isFinite() && !memory.isFinite(entry)) throw DivergedException(manifest.refusal(loss(), rate))
        memory.keep(entry, share = 1f)
    }

    /**
     * Mean loss and accuracy over all batches.
     *
     * @param signature that takes them: of the model's inputs, or of what its first layers gave.
     * @param between is called before each; what it throws ends the evaluation.
     * @throws DivergedException the loss is not finite.
     */
    suspend fun evaluate(batches: List<Batch>, signature: String = "evaluate", between: suspend () -> Unit): Evaluation {
        val counts = manifest.calls.getValue(signature).giving(Role.CORRECT).isNotEmpty()
        var total = 0.0
        var loss = 0.0
        var right = 0.0
        var places = 0.0
        for (batch in batches) {
            between()
            val entry = filled(signature, batch)
            run(entry)
            val mask = entry.outputs.values.find { it.spec.role == Role.MASK }
            // The program's loss is a mean by weight, its count of right answers a sum.
            total += batch.weight
            loss += entry.loss() * batch.weight
            right += entry.outputs["correct"]?.get() ?: 0f
            // Right answers are a share of the places that count in all rows.
            places += mask?.let { batch.weights.withIndex().sumOf { (row, weight) -> weight * it.mean(row) } } ?: batch.weight
        }
        if (!loss.isFinite()) throw DivergedException("the loss is $loss: restore a saved state or reset")
        return Evaluation(loss / total, if (!counts) null else if (places > 0) right / places else 0.0)
    }

    /**
     * The Fisher information of each channel, by weight.
     *
     * @throws DivergedException it is not finite.
     */
    fun fisher(batches: List<Batch>): Map<String, DoubleArray> {
        val entry = entry("fisher")
        val sums = entry.outputs.mapValues { (_, port) -> DoubleArray(port.spec.size) }
        val rows = batches.sumOf { it.rows.size }
        for (batch in batches) {
            entry.fill(batch)
            run(entry)
            for ((name, sum) in sums) {
                entry.outputs.getValue(name).numbers().forEachIndexed { i, value -> sum[i] += value / (2.0 * rows) }
            }
        }
        sums.entries.firstOrNull { (_, sum) -> !sum.all { it.isFinite() } }?.let { (name, _) ->
            throw DivergedException("the Fisher information of ${name.removePrefix(FISHER)} is not finite on these samples")
        }
        return sums.mapKeys { (name, _) -> name.removePrefix(FISHER) }
    }

    /** The outputs of all rows, by the signatures to call; [between] as for [evaluate]. */
    suspend fun infer(calls: List<Pair<String, Batch>>, between: suspend () -> Unit): List<Map<String, Values>> {
        return calls.flatMap { (name, batch) ->
            between()
            val entry = filled(name, batch)
            run(entry)
            batch.rows.indices.map { row -> entry.outputs.mapValues { (_, port) -> given(port, batch.rows[row], row) } }
        }
    }

    /** What a signature gives for one row of each of its inputs. */
    fun call(name: String, inputs: Map<String, Values>): Map<String, Values> {
        val entry = entry(name)
        for ((input, values) in inputs) entry.inputs.getValue(input).put(0, values)
        run(entry)
        return entry.outputs.mapValues { (_, port) -> port.take(0) }
    }

    /** What is given for a row: of a program of several lengths for as many tokens as it has. */
    private fun given(port: Port, sample: Sample, row: Int): Values {
        val all = port.take(row)
        val isCut = manifest.byLength("infer").isNotEmpty()
        return if (isCut) all.fitted(all.size / port.spec.shape[1] * sample.tokens, 0) else all
    }

    /** A copy of the state. */
    fun read(): List<StoredTensor> {
        checkNotLost()
        return manifest.stateTensors.map {
            StoredTensor(it.tensor, it.dtype, it.shape, ByteBuffer.wrap(memory.read(it.tensor)))
        }
    }

    /** Replaces the state by tensors that were checked, and clears the gradients. */
    fun write(tensors: List<StoredTensor>) {
        isLost = true
        memory.write(tensors.associate { it.name to it.bytes })
        isLost = false
        isHalfDone = false
    }

    /** A signature with rows, of several lengths the one for the fewest tokens. */
    private fun filled(name: String, batch: Batch): EntryPoint {
        val (called, rows) = manifest.ofFewestTokens(name, batch)
        return entry(called).apply { fill(rows) }
    }

    private fun entry(name: String): EntryPoint {
        checkNotLost()
        return entries.getOrPut(name) {
            val onFeatures = manifest.behindFeatures[name]
            if (onFeatures == null) EntryPoint(name, manifest.signatures.getValue(name))
            else EntryPoint(name, manifest.signatures.getValue(onFeatures), onFeatures, entry(FEATURES))
        }
    }

    private fun run(entry: EntryPoint) {
        entry.before?.let(::run)
        val call = memory.call(entry)
        runtime.run(entry.called, call.inputs, call.outputs)
    }

    private fun checkNotLost() {
        if (isLost) throw RuntimeFailedException("the runtime failed while its state was written: restore or reset")
    }
}
