package org.pocketune.trainer

/** What a user or app passes in, checked once, in plain words, before it reaches the runtime. */
internal class Inputs(private val manifest: Manifest, private val limits: Limits) {
    private val lengths = manifest.byLength(manifest.stepName).keys

    /** Samples to train with. Throws [InputException], also when there is nothing of weight above 0. */
    fun check(samples: List<Sample>, what: String = "samples") {
        if (samples.size > limits.samples) tooMany(what, samples.size)
        samples.forEachIndexed { i, sample ->
            val where = "$what[$i]"
            inputs(where, sample.inputs)
            targets(where, sample.targets, sample.inputs.values.first().size)
            if (!sample.weight.isFinite() || sample.weight < 0) refuse("$where: its weight is ${sample.weight}")
        }
        if (samples.none { it.weight > 0 }) refuse("$what: there is nothing of weight above 0")
    }

    /** Samples for `evaluate`, which not every program has. */
    fun checkJudged(samples: List<Sample>, what: String = "samples") {
        if (manifest.evaluate == null) {
            refuse("$what: this program has no signature 'evaluate': build it with --signatures train,evaluate,infer")
        }
        check(samples, what)
        whole(what, manifest.evaluate, samples.count { it.weight > 0 })
    }

    /** Samples to choose channels by, for which not every program is made. */
    fun checkChoosing(samples: List<Sample>) {
        if (manifest.fisher == null) {
            refuse("samples: this program has no signature 'fisher': build it with --signatures train,infer,fisher")
        }
        check(samples)
    }

    /** Other channels may train while a training goes on. */
    fun checkRedrawn() {
        if (manifest.redrawn.isEmpty()) {
            refuse(
                "redrawing channels: no weight of ${manifest.name} is state that takes up what is added to its channels: " +
                    "build it with --update channels-10-redrawn"
            )
        }
    }

    /** What an epoch of a training is made of: [rows] of them. */
    fun checkEpoch(rows: Int): Unit = whole("samples", manifest.step, rows)

    /** Rows for `infer`. */
    fun check(rows: List<Map<String, Values>>) {
        if (rows.size > limits.samples) tooMany("rows", rows.size)
        rows.forEachIndexed { i, row -> inputs("rows[$i]", row) }
        if (rows.isEmpty()) refuse("rows: there are none")
        if (rows.size !in manifest.infers) whole("rows", manifest.infer, rows.size)
        val size = manifest.infer.taking(Role.INPUT)[0].shape[0]
        manifest.infer.giving(Role.OUTPUT).firstOrNull { it.shape[0] != size }?.let {
            refuse("the output ${it.name} of this model is not one row for each row of its input")
        }
    }

    /** What a plan asks for. */
    fun check(plan: Plan) {
        if (plan.epochs < 1) refuse("epochs must be at least 1, got ${plan.epochs}")
        if (plan.firstEpoch < 0 || (plan.steps ?: 1) < 1) {
            refuse("firstEpoch must not be below 0 and steps not below 1, got ${plan.firstEpoch} and ${plan.steps}")
        }
        if (plan.checkpointEvery < 0) refuse("checkpointEvery must not be below 0, got ${plan.checkpointEvery}")
        val patience = plan.earlyStop?.patience ?: 1
        if (patience < 1) refuse("earlyStop: patience must be at least 1, got $patience")
        if (plan.balanceClasses && manifest.onlyLabels?.count == null) {
            refuse("balanceClasses: this model knows no classes")
        }
        plan.skip?.let { check(it, plan.firstEpoch) }
        if (plan.redraw) checkRedrawn()
        val replay = plan.replay ?: return
        if (replay.share !in 0.0..MOST_REPLAY) refuse("replay: the share is from 0 to $MOST_REPLAY, not ${replay.share}")
        if (replay.samples.isNotEmpty()) check(replay.samples, "replay")
    }

    private fun check(skip: SkipLearned, firstEpoch: Int) {
        if (!(skip.below > 0 && skip.below.isFinite())) refuse("skip: below is a loss above 0, for example 0.03, not ${skip.below}")
        if (skip.revisit < 2) refuse("skip: revisit must be at least 2 (all rows come every so many epochs), got ${skip.revisit}")
        if (manifest.step.giving(Role.ROW_LOSSES).isEmpty()) {
            refuse(
                "skip: a step of ${manifest.name} does not give the loss of each row: build it with --row-losses on. A saved " +
                    "state continues there"
            )
        }
        if (firstEpoch % skip.revisit != 0) {
            refuse(
                "skip: the losses of the epochs before firstEpoch $firstEpoch are not known: continue with one in which all " +
                    "rows come, a multiple of ${skip.revisit}"
            )
        }
    }

    /** A short batch is not filled up where the rows that fill it would change what the others give. */
    private fun whole(what: String, signature: Signature?, rows: Int) {
        val place = signature?.mixing ?: return
        val size = signature.taking(Role.INPUT)[0].shape[0]
        if (rows % size == 0) return
        refuse(
            "$what: rows of a batch influence each other in this program ($place), so it takes whole batches of $size, " +
                "and $rows rows of weight above 0 cannot be filled up"
        )
    }

    private fun inputs(where: String, row: Map<String, Values>) {
        val specs = manifest.infer.taking(Role.INPUT)
        val tokens = tokens(where, row[specs[0].name])
        for (spec in specs) {
            val values = row[spec.name] ?: refuse("$where: the input ${spec.name} is missing: ${expected(specs, row)}")
            values("$where.${spec.name}", spec, values, tokens)
        }
        val known = specs.map { it.name }
        row.keys.firstOrNull { it !in known }?.let { refuse("$where: the model has no input '$it', only $known") }
    }

    private fun targets(where: String, targets: Map<String, Values>, tokens: Int) {
        val specs = manifest.step.taking(Role.TARGET)
        for (spec in specs) {
            val target = targets[spec.label]
                ?: refuse("$where: the target ${spec.label} is missing: ${expected(specs, targets)}")
            values("$where.${spec.name}", spec, target, if (lengths.isEmpty()) null else tokens)
            val problem = manifest.targetLabels[spec.name]?.problem(manifest.losses[spec.name] ?: "its loss", target)
            if (problem != null) refuse("$where.${spec.name}: $problem")
        }
        val known = specs.map { it.label }
        targets.keys.firstOrNull { it !in known }?.let { refuse("$where: the program takes no target '$it', only $known") }
    }

    /** The tokens of a row of a program of several lengths; null of others. */
    private fun tokens(where: String, first: Values?): Int? {
        if (first == null || lengths.isEmpty()) return null
        if (first.size in 1..lengths.max()) return first.size
        refuse(
            "$where: ${first.size} tokens, and rows of this program have 1 to ${lengths.max()}: cut the text into parts, or " +
                "build it with a larger length"
        )
    }

    /** What a program takes, and what came in its place. */
    private fun expected(specs: List<TensorSpec>, row: Map<String, Values>): String {
        val wanted = specs.joinToString { "${it.label} (${it.rowSize} x ${it.dtype})" }
        val given = row.map { (name, values) -> "$name (${values.size} x ${values.dtype})" }
        return "it takes $wanted, and ${given.joinToString().ifEmpty { "nothing" }} came"
    }

    private fun values(where: String, spec: TensorSpec, values: Values, tokens: Int?) {
        val range = spec.dtype.range
        val dtype = if (values is Values.Ints && range != null) spec.dtype else values.dtype
        val size = tokens ?: spec.rowSize
        if (dtype != spec.dtype || values.size != size) {
            refuse("$where: expected $size x ${spec.dtype}, got ${values.size} x $dtype")
        }
        if (values is Values.Floats && !values.array.all { it.isFinite() }) refuse("$where: holds NaN or infinity")
        val outside = (values as? Values.Ints)?.array?.firstOrNull { range != null && it !in range }
        if (outside != null) refuse("$where: $outside is no number of ${spec.dtype}")
    }

    private fun tooMany(what: String, size: Int): Nothing =
        refuse("$what: $size are too many, the limit is ${limits.samples}")

    private fun refuse(problem: String): Nothing = throw InputException(problem)

    private companion object {
        const val MOST_REPLAY = 0.95
    }
}

/** Of what they are given in. */
private val Values.dtype: Dtype
    get() = when (this) {
        is Values.Floats -> Dtype.FLOAT32
        is Values.Ints -> Dtype.INT32
        is Values.Bools -> Dtype.BOOL
    }

/** What fits into its elements, of types narrower than those that whole numbers are given in. */
private val Dtype.range: IntRange?
    get() = when (this) {
        Dtype.INT8 -> Byte.MIN_VALUE..Byte.MAX_VALUE
        Dtype.UINT8 -> UByte.MIN_VALUE.toInt()..UByte.MAX_VALUE.toInt()
        Dtype.INT16 -> Short.MIN_VALUE..Short.MAX_VALUE
        else -> null
    }
