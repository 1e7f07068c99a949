package org.pocketune.app

import android.app.Application
import android.os.Build
import java.io.File
import org.pocketune.app.core.Npu
import org.pocketune.runtime.litert.LitertRuntimeFactory
import org.pocketune.trainer.Accelerator

/** That of the phone's SoC, whose model Android tells from version 12 on. */
internal fun npuOf(app: Application): Npu? {
    if (Build.VERSION.SDK_INT < Build.VERSION_CODES.S) return null
    val libraries: File? = app.applicationInfo.nativeLibraryDir?.let(::File)
    return Npu(Build.SOC_MODEL) { compiled ->
        LitertRuntimeFactory(app.cacheDir, listOf(Accelerator.NPU), npuLibraries = libraries, compiled = compiled)
    }
}
