package org.pocketune.sample

import android.app.Activity
import android.os.Bundle
import android.widget.Button
import android.widget.LinearLayout
import android.widget.TextView
import java.io.File
import kotlin.random.Random
import kotlinx.coroutines.MainScope
import kotlinx.coroutines.cancel
import kotlinx.coroutines.launch
import org.pocketune.trainer.PocketuneException
import org.pocketune.trainer.Sample
import org.pocketune.trainer.TrainEvent

/** A button that teaches, and what came of it. A training ends with its window, and the model is then as it was. */
class MainActivity : Activity() {
    private val scope = MainScope()

    override fun onCreate(savedInstanceState: Bundle?) {
        super.onCreate(savedInstanceState)
        val told = TextView(this)
        val button = Button(this).apply { text = "Teach" }
        button.setOnClickListener {
            button.isEnabled = false
            scope.launch {
                try {
                    teach(told)
                } catch (error: PocketuneException) {
                    told.text = error.message
                } finally {
                    button.isEnabled = true
                }
            }
        }
        setContentView(
            LinearLayout(this).apply {
                orientation = LinearLayout.VERTICAL
                addView(button)
                addView(told)
            },
        )
    }

    override fun onDestroy() {
        scope.cancel()
        super.onDestroy()
    }

    private suspend fun teach(told: TextView) {
        val learner = (application as SampleApp).learner.await()
        val samples = madeUp(120)
        learner.teach(samples.drop(30), samples.take(30)).collect { event ->
            if (event is TrainEvent.Step) told.text = "step ${event.step}: loss ${event.loss}"
            if (event is TrainEvent.Finished) {
                told.text = "before: ${event.before}\nafter: ${event.after}\n" +
                    if (event.adopted == null) "not kept: it got worse" else "kept"
            }
        }
        learner.export(File(filesDir, "mine.tflite"))
    }

    /** Rows of three kinds: the numbers that are larger tell which. Your app takes what its person does. */
    private fun madeUp(count: Int): List<Sample> = List(count) { i ->
        Sample(FloatArray(8) { k -> Random.nextFloat() + if (k % 3 == i % 3) 1 else 0 }, i % 3)
    }
}
