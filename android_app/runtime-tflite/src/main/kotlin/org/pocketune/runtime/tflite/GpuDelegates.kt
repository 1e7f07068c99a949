package org.pocketune.runtime.tflite

import org.tensorflow.lite.Delegate
import org.tensorflow.lite.gpu.CompatibilityList
import org.tensorflow.lite.gpu.GpuDelegate
import org.tensorflow.lite.gpu.GpuDelegateFactory

/**
 * The GPU delegate of `tensorflow-lite-gpu`. Throws UnsupportedOperationException on a device that is known not to run
 * it well, and LinkageError in an app without the library.
 */
internal fun gpuDelegate(): Delegate =
    CompatibilityList().use { known ->
        if (!known.isDelegateSupportedOnThisDevice) {
            throw UnsupportedOperationException("this device's GPU is not supported")
        }
        // float32: the updates of training vanish in half precision.
        val options = GpuDelegateFactory.Options().setPrecisionLossAllowed(false)
        GpuDelegate(options)
    }
