package org.pocketune.app

import android.app.Application
import org.pocketune.app.core.Npu

/** None: TensorFlow Lite has no delegate for one. */
@Suppress("UNUSED_PARAMETER")
internal fun npuOf(app: Application): Npu? = null
