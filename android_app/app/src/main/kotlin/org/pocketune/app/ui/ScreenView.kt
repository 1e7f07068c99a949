package org.pocketune.app.ui

import android.content.res.Resources
import android.view.LayoutInflater
import android.view.View
import android.view.ViewGroup
import java.text.NumberFormat
import org.pocketune.app.core.Event
import org.pocketune.app.core.Screen
import org.pocketune.app.core.UiState

/** One screen: draws states and tells what the user does. */
abstract class ScreenView(parent: ViewGroup, layout: Int) {
    val root: View = LayoutInflater.from(parent.context).inflate(layout, parent, false).also(parent::addView)
    protected val resources: Resources = parent.resources

    abstract fun draw(state: UiState)

    protected fun <T : View> view(id: Int): T = root.findViewById(id)

    protected fun onClick(id: Int, action: () -> Unit) = view<View>(id).setOnClickListener { action() }
}

/** Makes the view of a screen. */
fun screenView(screen: Screen, parent: ViewGroup, tell: (Event) -> Unit): ScreenView = when (screen) {
    Screen.TEACH -> TeachScreen(parent, tell)
    Screen.PERSONALIZE -> PersonalizeScreen(parent, tell)
    Screen.COMPARE -> CompareScreen(parent, tell)
    Screen.TRY -> TryScreen(parent, tell)
    Screen.ABOUT -> AboutScreen(parent)
}

/** A number as the user's language writes it. */
internal fun Resources.decimals(number: Number, digits: Int): String =
    NumberFormat.getInstance(configuration.locales[0]).run {
        minimumFractionDigits = digits
        maximumFractionDigits = digits
        format(number)
    }
