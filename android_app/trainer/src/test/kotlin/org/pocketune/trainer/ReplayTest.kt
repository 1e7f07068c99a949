package org.pocketune.trainer

import java.io.File
import java.io.IOException
import java.nio.ByteBuffer
import kotlin.test.assertContentEquals
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import kotlin.test.assertNotNull
import kotlin.test.assertNull
import kotlin.test.assertTrue
import kotlinx.coroutines.flow.toList
import kotlinx.coroutines.runBlocking
import kotlinx.serialization.SerialName
import kotlinx.serialization.Serializable
import kotlinx.serialization.json.Json
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir

/** A memory of tests/runtime/memories.json. */
@Serializable
private class Recorded(
    val keeps: Keeps,
    val limit: Int,
    @SerialName("held_out") val heldOut: Int,
    val seed: Long,
    val classes: Int,
    val tensors: Map<String, List<RowTensor>>,
    val capacities: List<Int>,
    val calls: List<Call>,
) {
    @Serializable
    class Call(val rows: Int, val bytes: Int, val sha256: String, val replay: List<Long>, val heldout: List<Long>)
}

@Serializable
private class RecordedMemories(val program: RowsOwner, val names: List<String>, val memories: List<Recorded>)

/** Memories: the host's bytes, what is kept, damaged files, and trainings with them. */
class ReplayTest {
    @TempDir lateinit var folder: File
    private val path get() = File(folder, "mine.memory")
    private val manifest get() = Fixture.stateless.manifest

    @Test
    fun `files and rows are those of the host and the page`() {
        val recorded = Json.decodeFromString<RecordedMemories>(File("../../tests/runtime/memories.json").readText())
        assertEquals(3, recorded.memories.size)
        for (memory in recorded.memories) {
            val (replay, aside) = listOf("replay", "heldout").map { ReplayPart(memory.tensors.getValue(it), 0, memory.classes) }
            var contents = memory.run { ReplayFile.begin(recorded.program, keeps, limit, heldOut, seed, replay, aside) }
            assertEquals(memory.capacities, listOf(contents.replay, contents.aside).map { it.reservoir.capacity })
            for (call in memory.calls) {
                val first = contents.seen
                val offered = contents.offer(List(call.rows) { labelOf(first + it, memory).takeIf { _ -> weightOf(first + it) > 0 } })
                contents = offered.contents(
                    { row -> rowOf(first + row, memory, "replay") },
                    { row -> rowOf(first + row, memory, "heldout") },
                ).tagged(recorded.names.take(memory.classes).map(ClassTags::of))
                val file = ReplayFile.pack(contents)
                assertEquals(call.replay, contents.replay.numbers())
                assertEquals(call.heldout, contents.aside.numbers())
                assertEquals(call.bytes, file.limit())
                assertEquals(call.sha256, file.sha256().toHex())
                contents = ReplayFile.unpack(file)
                assertEquals(file, ReplayFile.pack(contents))
            }
        }
    }

    private fun ReplayPart.numbers() = List(size, ::number)

    private fun labelOf(number: Long, memory: Recorded): Int {
        val common = if (number % 7 < 4) 0 else if (number % 7 < 6) 1 else 2
        return if (memory.classes == 4 && number >= 60 && number % 9 == 0L) 3 else common % memory.classes
    }

    private fun weightOf(number: Long): Int = if (number % 13 == 10L) 0 else 1 + (number % 3).toInt()

    private fun rowOf(number: Long, memory: Recorded, part: String): Map<String, Values> =
        memory.tensors.getValue(part).mapIndexed { i, tensor ->
            val elements = IntArray(tensor.shape.product().toInt()) { (number * 31 + i * 7 + it).toInt() }
            tensor.name to when {
                tensor.name == "weight" -> Values.Floats(floatArrayOf(weightOf(number).toFloat()))
                tensor.name == "y" && tensor.dtype == Dtype.INT32 -> Values.Ints(intArrayOf(labelOf(number, memory)))
                tensor.dtype == Dtype.FLOAT32 -> Values.Floats(FloatArray(elements.size) { (elements[it] % 64 - 32) / 8f })
                tensor.dtype == Dtype.BOOL -> Values.Bools(BooleanArray(elements.size) { elements[it] % 2 == 1 })
                else -> Values.Ints(IntArray(elements.size) { elements[it] % 100 - 50 })
            }
        }.toMap()

    @Test
    fun `draws are java's own`() {
        val (ours, java) = Draws.seeded(1_000_003) to java.util.Random(1_000_003)
        for (bound in listOf(1, 2, 3, 7, 64, 1000, 1 shl 30, (1 shl 30) + 1, Int.MAX_VALUE)) {
            repeat(50) { assertEquals(java.nextInt(bound), ours.next(bound)) }
        }
    }

    @Test
    fun `rows come back as they went in, within the limit`() {
        val memory = ReplayMemory.open(path, Fixture.stateless, limit = 8000, heldOut = 0.25, seed = 3)
        val samples = List(200) { Sample(FloatArray(36) { k -> it + k / 64f }, if (it % 20 == 0) 1 else 0, 1f + it) }
        for (part in samples.chunked(37)) {
            memory.visit(part).enter()
            assertTrue(path.length() <= 8000)
        }
        val again = ReplayMemory.open(path, Fixture.stateless)
        assertEquals(200L to memory.counts(), again.seen to again.counts())
        val kept = again.replayed() + again.heldOut()
        assertEquals(memory.replayed().size + memory.heldOut().size, kept.size)
        for (row in kept) {
            val number = row.weight.toInt() - 1
            assertContentEquals((samples[number].inputs.getValue("x") as Values.Floats).array, (row.inputs.getValue("x") as Values.Floats).array)
            assertEquals(samples[number].label, row.label)
        }
        assertEquals(kept.size, kept.map { it.weight }.toSet().size)
        val counts = again.counts()
        assertTrue(counts.getValue(1) >= minOf(counts.getValue(0), 5), "the rare class stays: $counts")
        again.forget(0)
        assertEquals(setOf(1), ReplayMemory.open(path, Fixture.stateless).counts().keys)
    }

    @Test
    fun `a label that there is not is refused, and the file stays`() {
        val memory = ReplayMemory.open(path, Fixture.stateless)
        memory.visit(Fixture.samples(30)).enter()
        val before = path.readBytes()
        for (label in listOf(4, -1)) for (change in listOf<() -> Unit>({ memory.forget(label) }, { memory.rename(label, "cat") })) {
            val refused = assertFailsWith<InputException> { change() }
            assertEquals("label: a whole number from 0 to 3, the labels of $path, not $label", refused.message)
        }
        assertContentEquals(before, path.readBytes())
        assertEquals(30L, ReplayMemory.open(path, Fixture.stateless).seen)
    }

    @Test
    fun `rows of the only target are of its classes where it has a name`() {
        val kind = RowKind(Fixture.manifest("named-target"))
        val labels = listOf(0, 1, 2, 1, 2, 2)
        val x = mapOf("x" to Values.Floats(FloatArray(6)))
        assertEquals(labels, labels.map { kind.labelOf(Sample(x, mapOf("kind" to Values.Ints(intArrayOf(it))))) })
    }

    @Test
    fun `what is damaged, or another's, is refused and stays`() {
        ReplayMemory.open(path, Fixture.stateless, limit = 8000).visit(Fixture.samples(30)).enter()
        val good = path.readBytes()
        for (at in good.indices step 7) {
            path.writeBytes(good.copyOf().also { it[at] = (it[at].toInt() xor 1).toByte() })
            assertFailsWith<ReplayException>("at $at") { ReplayMemory.open(path, Fixture.stateless) }
        }
        for (bytes in listOf(good.copyOf(good.size - 1), good + 0, ByteArray(0), good.copyOf(40))) {
            path.writeBytes(bytes)
            assertFailsWith<ReplayException> { ReplayMemory.open(path, Fixture.stateless) }
            assertContentEquals(bytes, path.readBytes())
        }
        path.writeBytes(good)
        val another = assertFailsWith<ReplayException> { ReplayMemory.open(path, Fixture.program("cnn-stateless")) }
        assertTrue("belongs to another program: the forward computation differs" in another.message!!)
        val larger = assertFailsWith<ReplayException> { ReplayMemory.open(path, Fixture.stateless, limit = 9000) }
        assertTrue("begun with limit 8000, not 9000" in larger.message!!)
        assertFailsWith<InputException> { ReplayMemory.open(File(folder, "b"), Fixture.stateless, limit = 100) }
        assertFailsWith<InputException> { ReplayMemory.open(File(folder, "b"), Fixture.stateless, heldOut = 0.6) }
        assertFailsWith<InputException> { ReplayMemory.open(File(folder, "b"), Fixture.stateless, keeps = Keeps.FEATURES) }
    }

    @Test
    fun `two that write to a file do not lose rows of each other`() {
        val (one, other) = List(2) { ReplayMemory.open(path, Fixture.stateless) }
        one.visit(Fixture.samples(5)).enter()
        assertFailsWith<ReplayException> { other.visit(Fixture.samples(5)).enter() }
        assertEquals(5L, ReplayMemory.open(path, Fixture.stateless).seen)
    }

    @Test
    fun `a full disk leaves the rows before`() {
        val disk = FailingDisk()
        val memory = ReplayMemory.open(path, manifest, Wanted(), disk)
        memory.visit(Fixture.samples(5)).enter()
        disk.isFull = true
        assertFailsWith<StorageException> { memory.visit(Fixture.samples(7)).enter() }
        assertEquals(5L, memory.seen)
        disk.isFull = false
        memory.visit(Fixture.samples(7)).enter()
        assertEquals(12L, ReplayMemory.open(path, Fixture.stateless).seen)
        assertEquals(listOf(path), folder.listFiles()!!.toList())
    }

    @Test
    fun `a crash at any point of a commit leaves the rows before or all`() {
        var point = 0
        do {
            val memory = ReplayMemory.open(path, Fixture.stateless)
            val before = memory.seen
            val disk = EndingDisk(point++)
            val crashing = ReplayMemory.open(path, manifest, Wanted(), disk)
            val ended = runCatching { crashing.visit(Fixture.samples(3)).enter() }.isFailure
            val after = ReplayMemory.open(path, Fixture.stateless)
            assertTrue(after.seen == before + 3 || ended && after.seen == before)
            assertEquals(after.seen.toInt(), after.replayed().size + after.heldOut().size)
        } while (ended)
        assertTrue(point > 4)
    }

    @Test
    fun `a training replays rows, never trains on held-out ones, and all enter at its end`() = runBlocking<Unit> {
        val memory = ReplayMemory.open(path, Fixture.stateless, heldOut = 0.25)
        val weights = ArrayList<Float>()
        val runtime = RuntimeFactory { program ->
            ScriptedRuntime(program.manifest).also { scripted -> this@ReplayTest.scripted = scripted }
        }
        Trainer.open(Fixture.stateless, runtime, Store(folder)).use { trainer ->
            trainer.fit(List(40) { Fixture.sample(it % 4, 1f + it) }, Plan(epochs = 1), memory = memory).toList()
            assertEquals(40L, memory.seen)
            val aside = memory.heldOut().map { it.weight }
            weights += scripted.weights.flatten().filter { it > 0 }
            assertEquals((1..40).map { it.toFloat() }.toSet() - aside.toSet(), weights.toSet())
            scripted.weights.clear()
            val old = memory.replayed().map { it.weight }.toSet()
            val events = trainer.fit(List(40) { Fixture.sample(it % 4, 101f + it) }, Plan(epochs = 1), memory = memory).toList()
            assertEquals(aside.size, (events.first() as TrainEvent.Started).heldOut)
            assertNotNull((events.last() as TrainEvent.Finished).before)
            val replayed = scripted.weights.flatten().filter { it > 0 && it < 100 }
            val new = scripted.weights.flatten().filter { it > 100 }
            assertEquals(new.size, replayed.size, "half of the rows")
            assertTrue(old.containsAll(replayed))
            assertEquals(80L, memory.seen)
            trainer.remember(memory, Fixture.samples(2))
            assertEquals(82L, ReplayMemory.open(path, Fixture.stateless).seen)
            val diverging = Plan(epochs = 1, learningRate = LearningRate.Constant(Float.MAX_VALUE))
            runCatching { trainer.fit(Fixture.samples(9), diverging, memory = memory).toList() }
            val all = trainer.fit(Fixture.samples(9), Plan(epochs = 1)).toList()
            assertNull((all.last() as TrainEvent.Finished).before, "without a memory nothing is judged")
        }
    }

    @Test
    fun `rows of an update that sorts its classes anew are refused`() = runBlocking<Unit> {
        for (name in listOf("interchange-labelled", "interchange-relabelled")) {
            val program = Fixture.program(name)
            val memory = ReplayMemory.open(path, program, heldOut = 0.0)
            Trainer.open(program, { ScriptedRuntime(it.manifest) }, Store(folder)).use { trainer ->
                val added = runCatching { trainer.remember(memory, Fixture.samples(8)) }
                if (name == "interchange-labelled") return@use added.getOrThrow()
                val refused = assertFailsWith<ReplayException> { added.getOrThrow() }
                assertTrue("label 2 came under another name, and the label is of 'd' now" in refused.message!!)
            }
        }
    }

    private lateinit var scripted: ScriptedRuntime
}

/** The process ends, as far as a thread can tell, at a point of a commit. */
private class EndingDisk(private val at: Int) : Disk {
    private var point = 0

    override fun read(file: File, most: Long): ByteBuffer? = RealDisk.read(file, most)

    override fun write(file: File, pieces: Sequence<ByteBuffer>) {
        reach()
        RealDisk.write(file, pieces.map { it.between(0, it.limit() / 2) })
        reach()
        RealDisk.delete(file)
        RealDisk.write(file, pieces)
        reach()
    }

    override fun rename(from: File, to: File) {
        reach()
        RealDisk.rename(from, to)
        reach()
    }

    override fun delete(file: File) {
        if (point > at) throw IOException("nothing runs any more")
        reach()
        RealDisk.delete(file)
    }

    override fun flush(directory: File) {
        reach()
        RealDisk.flush(directory)
    }

    private fun reach() {
        if (point++ >= at) throw IOException("killed")
    }
}
