package org.pocketune.trainer

/**
 * Classes of the state in memory, changed between trainings; the twin of the page's `run-time-classes.ts`.
 *
 * @property goesOn called between two calls of the runtime: stops what was cancelled or closed.
 */
internal class RunTimeClasses(
    private val program: Program,
    private val engine: Engine,
    private val goesOn: suspend () -> Unit,
) {
    private val manifest = program.manifest

    /** Names by label, empty ones free. */
    fun names(): List<String> = KnownClasses(program, engine.read()).names

    /** The same where the state keeps them. */
    fun keptNames(): List<String>? = manifest.head?.names?.let { names() }

    /** Names by label as a memory has them: those that the state keeps, or else the program's labels. */
    fun namesInMemory(): List<String>? = keptNames() ?: manifest.labels

    /** Throws [InputException] for samples of a class that there is not. */
    fun checkKnown(samples: List<Sample>) {
        val names = keptNames() ?: return
        samples.flatMap { it.classes() }.firstOrNull { names.getOrNull(it) == "" }?.let {
            throw InputException("y: label $it is of no class yet: addClass(name) makes one")
        }
    }

    /** Sets the last layer to the means of the samples' features by class, or with a [shrinkage] to their discriminant. */
    suspend fun setMeans(samples: List<Sample>, shrinkage: Shrinkage?) {
        val labels = samples.map { it.classes().singleOrNull() ?: throw InputException("y: labels of known classes, one a row") }
        val features = features(samples)
        change { setMeans(features, labels, shrinkage) }
    }

    /** Adds a class of the mean of the rows' features, or without them of weights 0; returns its label. */
    suspend fun add(name: String, rows: List<Sample>?): Int {
        val features = rows?.let { features(it) }
        return change { add(name, features) }
    }

    /** Makes a change in memory. */
    fun <T> change(made: KnownClasses.() -> T): T = with(KnownClasses(program, engine.read())) {
        made().also { engine.write(changed()) }
    }

    /** What the last layer reads of each row. */
    private suspend fun features(rows: List<Sample>): List<Values> {
        if (manifest.head?.takesFeatures != true) {
            throw InputException(
                "setting class means needs a program for it: build with head='class_means' and update='head'",
            )
        }
        val size = manifest.signatures.getValue(FEATURES).taking(Role.INPUT)[0].shape[0]
        val calls = rows.chunked(size) { part -> FEATURES to Batch(part.toList(), part.map { 1f }) }
        return engine.infer(calls, goesOn).map { it.values.single() }
    }
}
